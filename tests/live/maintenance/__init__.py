"""Tests of scannery.live.maintenance."""
