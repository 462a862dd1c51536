"""Training: asynchronous, synchronous, offline; presets, settings, plan, saved models.

Must not know: bench, cli, equations, sockets. Open first: `asynchronous.py`.
"""
