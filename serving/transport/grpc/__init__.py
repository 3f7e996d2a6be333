"""gRPC: authentication, dispatch, streams, timeouts, health and reflection."""
