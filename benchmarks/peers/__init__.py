"""The same work done by other frameworks; each script runs in a separate virtual environment."""
