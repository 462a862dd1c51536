"""Reads what runs have left in their directories and shows it; trains nothing, writes nothing."""
