"""Live updates: the mutation log, the memtable, and how they become segments."""
