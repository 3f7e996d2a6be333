"""The Model Context Protocol: tools by which agents search and read indexes, over stdio and HTTP, as a client."""
