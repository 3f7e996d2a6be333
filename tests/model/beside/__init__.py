"""Processes that write and read beside each other, compared with the log that they wrote."""
