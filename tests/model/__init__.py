"""A state machine of random operations on one store, compared with a model in plain Python after each step."""
