"""What calls return, and how it is read from messages and shown as tables."""
