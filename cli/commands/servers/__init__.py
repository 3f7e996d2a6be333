"""Commands about running servers: their figures, their leaves, their page."""
