"""Ranking expressions: how scores and attributes make the order of hits, and between which bounds."""
