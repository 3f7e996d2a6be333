"""The commands of `scannery index`, and `scannery store`."""
