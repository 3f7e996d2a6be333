"""Ids of answers, feedback on them, and the log of a share of the queries."""
