"""Nouns and contracts that every other room may rely on.

Must not know: every other room; loads numpy at most. Open first: `agent.py`.
"""
