"""The commands `train resume eval export bench tune doctor`, one file each.

Open first: `main.py`.
"""
