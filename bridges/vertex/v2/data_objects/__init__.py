"""Data objects of collections: in requests, as they are stored, and their methods."""
