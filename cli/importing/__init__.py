"""`scannery import`: collections of other vector databases become indexes."""
