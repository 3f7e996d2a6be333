"""The asynchronous client. `_sync` is generated from it (tests/tools/generate_sync.py)."""
