"""Runs under many faults, longer than a test may take."""
