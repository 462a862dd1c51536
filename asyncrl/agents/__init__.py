"""Algorithms, a file each; `parts/` is what several of them use.

Must not know: runs, replay, processes. Open first: `dqn.py`.
"""
