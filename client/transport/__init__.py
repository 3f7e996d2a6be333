"""How a call reaches an engine: over gRPC, over HTTP, or in this process."""
