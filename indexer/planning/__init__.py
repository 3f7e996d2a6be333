"""Filtered search: allowed rows, leaves, the cost of each plan, and the planner."""
