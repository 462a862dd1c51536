"""Named arrays on disk that survive a crash: written in the background, resumed from.

Must not know: what the arrays are. Open first: `checkpoint.py`.
"""
