"""What attaches to a run at one of its seams: several learners, a recorded order.

The engine must not know them. Open first: `order/recording.py`, an observer.
"""
