"""The wires by which requests arrive."""
