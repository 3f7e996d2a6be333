"""Export the datapoints of a version to files that other tools read."""
