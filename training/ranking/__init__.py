"""Learned orders of hybrid hits: a weight of dense search, and a linear ranker."""
