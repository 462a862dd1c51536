"""Storage of experience and choice of samples.

Must not know: threads, transports, agents. Open first: `uniform.py`.
"""
