"""Arrow columns: read in any type, and brought to the types of an index."""
