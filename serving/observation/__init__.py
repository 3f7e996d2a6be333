"""One observer of live searches: a sample of their queries, and the work in the background that needs it."""
