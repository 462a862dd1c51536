"""Benchmarks of speed, one question per script."""
