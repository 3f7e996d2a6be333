"""Models on disk to modules in memory: find, check, load, cache."""
