"""Holding recall: the estimate from live queries, and the control of the settings by it."""
