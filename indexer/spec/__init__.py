"""The spec of an index: its keys, their checks, and reading it."""
