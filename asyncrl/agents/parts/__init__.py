"""Code that several algorithms share.

Must not know: runs, replay, processes. Open first: `torch_agent.py`.
"""
