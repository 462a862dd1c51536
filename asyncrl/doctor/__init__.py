"""Is this machine, is this environment fit for training?

Must not know: the command line, bench. Open first: `environment.py`.
"""
