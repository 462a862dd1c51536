"""Experience from elsewhere into a replay.

Must not know: how one trains on it. Open first: `episodes.py`.
"""
