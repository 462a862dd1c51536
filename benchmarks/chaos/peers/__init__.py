"""The same four faults in several frameworks. Loads nothing: some are not where asyncrl is."""
