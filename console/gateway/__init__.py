"""Messages of the wire contract as JSON, passed on to the SDK's transport.

The page speaks the API of `docs/http.md`; so what it sends can be sent by `curl` to a server, too.
"""
