"""Query execution: from parsed queries to ranked hits and their messages."""
