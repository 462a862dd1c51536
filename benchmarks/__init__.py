"""Measurements of asyncrl against limits and peers, side by side on one machine."""
