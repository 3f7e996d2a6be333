"""The spec: what a user says about an index, read and checked."""
