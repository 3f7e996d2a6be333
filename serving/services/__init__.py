"""RPC handlers without a wire: messages in, messages out, errors raised."""
