"""Generated from proto/scannery/vertex/v1 by `make proto`."""
