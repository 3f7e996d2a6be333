"""Trains the encoder of an index, whose queries and documents one model encodes."""
