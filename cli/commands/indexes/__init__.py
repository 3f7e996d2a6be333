"""The commands of `scannery index`."""
