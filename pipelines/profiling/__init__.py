"""Look at a sample of the input: what its fields are, a spec that fits them, and what a spec makes of them."""
