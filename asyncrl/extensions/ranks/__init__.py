"""Several learners that train one model. Open first: `share.py`, then `source.py`."""
