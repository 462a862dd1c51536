"""Measures each stage against its own limit, and finds the fastest settings (`tuner.py`).

Must not know: the command line. Open first: `stages.py`.
"""
