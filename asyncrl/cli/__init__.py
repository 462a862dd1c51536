"""The commands `train resume eval export bench tune doctor`, a file each.

Open first: `main.py`.
"""
