"""Start, watch, restart and end actor processes.

Must not know: what runs in them. Open first: `actor_manager.py`.
"""
