"""What a build keeps in the store between its stages: job, work units, stage outputs, embedding cache, progress."""
