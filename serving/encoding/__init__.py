"""Texts to vectors, in this process or in another."""
