"""Ways to bring actors to life."""
