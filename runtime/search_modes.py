"""The modes of a search, and the methods of fusion: what specs, requests, manifests and answers call them."""

from __future__ import annotations

from typing import Literal, TypeAlias

__all__ = ["FusionMethod", "Mode"]

Mode: TypeAlias = Literal["dense", "lexical", "hybrid"]
"""Ranking of hits: by vectors, by words, or by both."""
FusionMethod: TypeAlias = Literal["weighted_score", "reciprocal_rank"]
"""Method of making one ranking of several: by the weighted sum of scaled scores, or of reciprocal ranks."""
