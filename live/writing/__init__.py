"""Writes: what they read, how they are resolved in it, and their groups, which share a commit."""
