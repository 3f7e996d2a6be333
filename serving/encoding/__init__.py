"""Encodes texts as vectors, in this process or in an encoder process; loads rerankers."""
