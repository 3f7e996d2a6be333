"""Transports: the request lifecycle they share, and one folder each for gRPC and HTTP."""
