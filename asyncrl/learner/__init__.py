"""What the learner's process does: take in, sample at the allowed rate, optimise, publish, record.

Must not know: actors' code, sockets, equations. Open first: `async_trainer.py`.
"""
