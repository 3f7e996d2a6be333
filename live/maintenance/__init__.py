"""What happens to an index beside writes: seals, merges, backups, rollbacks, and when each is due."""
