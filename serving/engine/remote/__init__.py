"""Search over the leaves of a cluster: what a root does in place of searching segments."""
