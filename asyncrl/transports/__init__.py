"""Ways to move messages between actors and learner."""
