"""Actors that are programs that have their own loop. Open first: `connect.py`."""
