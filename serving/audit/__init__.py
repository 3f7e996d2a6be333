"""The audit log: who called which method of which index, with what outcome, in chains of hashes."""
