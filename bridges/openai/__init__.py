"""OpenAI's API of embeddings, over the HTTP of a server."""
