"""Scans: the datapoints that a filter allows, in an order that each process finds again."""
