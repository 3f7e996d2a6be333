"""Transports for coroutines. `_sync` is generated from it (tests/tools/generate_sync.py)."""
