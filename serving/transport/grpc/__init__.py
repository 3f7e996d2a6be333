"""gRPC: from the headers of a call to its answer."""
