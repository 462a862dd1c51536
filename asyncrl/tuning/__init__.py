"""How many actors, environments and rows a run should have, found by short runs and a model."""
