"""The `scannery` command: parses arguments and prints results."""

import os

# Before the first import of grpc, which reads it once: on a failed TLS handshake its C core would print a line such as
# "I1122 … ssl_transport_security.cc" besides the error of the command. Programs that use the SDK decide for themselves.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
