"""What an actor process does: act, step, turn steps into rows and rows into segments.

Also what an evaluating process does.

Must not know: the learner, the algorithm, the kind of transport. Open first: `actor.py`.
"""
