"""Policies that act without asyncrl: numpy, ONNX.

Must not know: how they were trained. Open first: `export.py`.
"""
