"""RPC handlers, independent of the transport: messages in, messages out, errors raised."""
