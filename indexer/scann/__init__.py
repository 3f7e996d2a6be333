"""ScaNN: configuration, builds in child processes, its files as assets, and search."""
