"""Highlighting: the best sentence of each hit, and the words that match the query."""
