"""Parts of a cluster that fail, move or change while callers write and search."""
