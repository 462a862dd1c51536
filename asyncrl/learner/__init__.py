"""What the learner process does: receive, sample at the allowed rate, optimise, publish, record.

Must not know: actors' code, sockets, equations. Open first: `trainer.py`, then `source.py`.
"""
