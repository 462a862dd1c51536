"""Experience from elsewhere, as segments for a replay buffer."""
