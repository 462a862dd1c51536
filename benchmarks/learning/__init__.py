"""Does every algorithm learn? What is trained, how far, and how well: tasks, runs, a table."""
