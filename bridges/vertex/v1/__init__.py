"""The managed service's API v1: indexes, endpoints, neighbours."""
