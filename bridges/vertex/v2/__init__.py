"""The managed service's API v2: collections, data objects and their searches, on the indexes of this server."""
