"""Compiled kernels: fused loops over vectors, rows and leaves, most of which release the GIL."""
