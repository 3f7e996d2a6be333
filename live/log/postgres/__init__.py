"""The mutation logs of many machines: a database of PostgreSQL gives all writes of an index one order."""
