"""What a caller asks for: messages, parsed and checked."""
