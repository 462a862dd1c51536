"""What a run reports of itself: names and units, time by phase, use of the machine, the verdict.

Must not know: who records it. Open first: `metrics.py`.
"""
