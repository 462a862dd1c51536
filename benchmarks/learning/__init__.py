"""Does every algorithm learn? Tasks, runs, and a table of results."""
