"""Processes of a server: supervisor, workers, encoder processes, signals."""
