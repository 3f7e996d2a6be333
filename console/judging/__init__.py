"""Judging: sets of questions, who marks what, and how well columns answer them."""
