"""Storage and choice of samples."""
