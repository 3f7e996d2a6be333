"""Local folders, files and child processes: private, temporary, locked."""
