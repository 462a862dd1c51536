"""Records the order of an asynchronous run, and replays it. Open first: `recording.py`."""
