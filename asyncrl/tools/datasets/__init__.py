"""Experience from other sources into a replay.

Must not know: how training uses it. Open first: `episodes.py`.
"""
