"""What is used beside a run: benches, checks, reports, other data. Training must not know it."""
