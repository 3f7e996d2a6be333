"""The open indexes of a store, and the switch to new versions."""
