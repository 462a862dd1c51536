"""What attaches at a seam: several learners, a recorded order, programs with their own loop.

The engine must not know them. Open first: `order/recording.py`, an observer.
"""
