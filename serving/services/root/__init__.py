"""The handlers of a root: the public methods, answered by the leaves of a cluster."""
