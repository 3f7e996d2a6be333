"""The mutation log: the durable order of all writes to an index, its location and its identity."""
