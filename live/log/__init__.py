"""The mutation log: the durable order of all writes to an index, where it lies, and whether it is the right one."""
