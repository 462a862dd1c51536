"""Ways to step a batch of environments."""
