"""What runs have left in their directories, read for people; trains nothing, writes nothing."""
