"""Tests of scannery.indexer.datapoints.columns."""
