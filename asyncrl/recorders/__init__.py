"""Places where numbers are kept."""
