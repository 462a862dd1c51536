"""What attaches at a seam: several learners, a recorded order, own loops, Ray.

The engine must not know them. Open first: `order/recording.py`, an observer.
"""
