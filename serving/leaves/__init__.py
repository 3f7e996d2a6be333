"""A root's connections to the leaves of a cluster: which leaves there are, what they have, and calls to all groups."""
