"""A run as data: settings, presets, what builds a trainer of them, saved models.

Must not know: tools, extensions, the command line, equations, sockets. Open first: `train.py`.
"""
