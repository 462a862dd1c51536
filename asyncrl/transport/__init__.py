"""Delivery of messages: admission, encoding, ZeroMQ, in-process.

Must not know: what columns mean. Open first: `zeromq.py`.
"""
