"""Generated from proto/scannery/vertex/v2 by `make proto`; never edited by hand."""
