"""What one query sees: an immutable version with some mutations, and its filter caches."""
