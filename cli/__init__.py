"""The scannery command: thin, it parses and prints."""
