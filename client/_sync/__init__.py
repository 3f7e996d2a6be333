# Generated from `_async` by tests/tools/generate_sync.py: edit that one, then `make sync`.
"""The synchronous client. `_sync` is generated from it (tests/tools/generate_sync.py)."""
