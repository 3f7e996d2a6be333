"""Datapoints that expire."""
