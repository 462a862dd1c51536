"""Algorithms, one file each; `parts/` is what several of them share.

Must not know: runs, replay, processes. Open first: `dqn.py`.
"""
