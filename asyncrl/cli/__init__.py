"""The commands `train resume eval play export bench tune doctor`, one file each.

Open first: `main.py`.
"""
