"""Segments whose vectors stay in the store, and are read by ranges of bytes when a search needs them."""
