"""The `scannery` command: parses arguments and prints results."""

import os

# Before the first import of grpc, which reads it once: on every failed TLS handshake its C core would print lines such as
# "I1122 … ssl_transport_security.cc", besides the error that the command prints. The SDK leaves it to its callers.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
