"""What is used of Ray that is private."""
