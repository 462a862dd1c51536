"""Gymnasium, Atari and EnvPool environments as batches.

Must not know: agents, actors. Open first: `gym.py`.
"""
