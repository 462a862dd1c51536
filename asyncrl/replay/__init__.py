"""Storage of experience and selection of samples.

Must not know: threads, transports, agents. Open first: `uniform.py`.
"""
