"""The open indexes of a store, and their move to new versions."""
