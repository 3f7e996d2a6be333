# Generated from `_async` by tests/tools/generate_sync.py: edit that one, then `make sync`.
"""Transports for threads. `_sync` is generated from it (tests/tools/generate_sync.py)."""
