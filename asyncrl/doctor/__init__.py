"""Is this machine, this environment, this agent fit for training?

Must not know: the command line, bench. Open first: `environment.py`.
"""
