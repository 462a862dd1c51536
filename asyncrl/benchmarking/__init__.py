"""Throughput, stage by stage, each against its own limit measured in the same call."""
