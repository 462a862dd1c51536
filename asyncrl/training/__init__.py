"""The three ways to train: asynchronous, synchronous, offline; their settings, plan, saved models.

Must not know: bench, cli, equations, sockets. Open first: `asynchronous.py`.
"""
