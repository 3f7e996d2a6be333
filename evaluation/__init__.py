"""Retrieval quality against relevance judgements, and recall as served."""
