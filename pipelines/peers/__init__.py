"""Readers of other vector databases: their vectors, ids and payloads, for an index of ours."""
