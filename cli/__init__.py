"""The `scannery` command: parses arguments and prints results."""
