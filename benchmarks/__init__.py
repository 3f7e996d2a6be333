"""Benchmarks: each module is a command that measures side by side and prints a Markdown report."""
