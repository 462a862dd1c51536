"""Settings that train well as they are: one module for each name that `asyncrl train` knows."""
