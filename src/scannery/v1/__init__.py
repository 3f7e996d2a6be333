"""Generated from proto/scannery/v1 by `make proto`; never edited by hand."""
