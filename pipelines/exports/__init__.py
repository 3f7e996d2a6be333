"""Datapoints of a version to files that other tools read."""
