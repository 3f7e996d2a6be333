"""What all rooms stand on: errors, names of search modes, deadlines, retries, absolute paths, a bounded cache."""
