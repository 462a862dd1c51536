"""What a run reports about itself: names and units, time by phase, use of the machine, the verdict.

Must not know: who records it. Open first: `metrics.py`.
"""
