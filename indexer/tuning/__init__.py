"""Tuning: measure recall against cost on held-out queries after a build, and choose search settings."""
