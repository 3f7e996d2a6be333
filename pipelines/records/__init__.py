"""Input records to documents, passages and embeddings files."""
