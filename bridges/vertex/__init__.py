"""Other people's APIs, on the gRPC port: messages are translated, and the services of this server are called."""
