"""Actors and what the learner knows of them: launchers, restarts, ledger, grants, table.

Must not know: what runs in them, sockets. Open first: `actor_manager.py`.
"""
