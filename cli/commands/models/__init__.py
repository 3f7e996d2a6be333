"""The commands of `scannery model`, and `scannery train`, which makes models."""
