"""Finds no cluster on this machine."""
