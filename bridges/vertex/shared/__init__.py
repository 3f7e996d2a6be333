"""What all versions of the managed service's API share: names, state, operations, registration."""
