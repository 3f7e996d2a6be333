"""Maintenance of an index: seals, merges, backups and rollbacks, and their schedule."""
