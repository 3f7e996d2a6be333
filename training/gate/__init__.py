"""Whether a candidate may be promoted."""
