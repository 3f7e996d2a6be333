"""Recall against cost: measured after a build on held-out queries, to choose search settings."""
