"""Pairs of a text and a passage that answers it, of what an index says about itself and of judged queries."""
