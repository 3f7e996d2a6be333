"""What is asked: the methods of the contract as calls, and queries, filters and writes as messages."""
