"""Models that were trained on an index, as immutable versions in its store."""
