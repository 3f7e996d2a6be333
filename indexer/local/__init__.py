"""Folders, files and processes of this machine: private, temporary, locked."""
