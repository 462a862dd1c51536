"""How fast each stage is beside its own limit; which numbers train fastest (`tuner.py`).

Must not know: the command line. Open first: `stages.py`.
"""
