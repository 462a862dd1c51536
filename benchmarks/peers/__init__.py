"""The same work done by other frameworks; each script runs in a virtual environment of its own."""
