"""Checks whether this machine, an environment or an agent is ready for training.

Must not know: the command line, bench. Open first: `environment.py`.
"""
