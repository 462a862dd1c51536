"""Has a Ray cluster start the hosts of a run. Open first: `hosts.py`."""
