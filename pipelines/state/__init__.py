"""State of a build: job, work units, stage outputs, embedding cache, progress."""
