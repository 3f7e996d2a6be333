"""What a search learns from judged queries, the gate before it, and its promotion."""
