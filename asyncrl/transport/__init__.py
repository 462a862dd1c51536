"""Messages on their way: who may speak, bytes, ZeroMQ, in-process.

Must not know: what columns mean. Open first: `zeromq.py`.
"""
