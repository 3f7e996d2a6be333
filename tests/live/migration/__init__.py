"""Changes of the encoder and of passages while an index is served."""
