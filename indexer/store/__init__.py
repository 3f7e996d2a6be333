"""The object store: a folder or a bucket, with conditional puts."""
