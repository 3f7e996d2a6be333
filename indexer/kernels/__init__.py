"""Compiled kernels: fused loops over vectors, rows and leaves that release the interpreter's lock."""
