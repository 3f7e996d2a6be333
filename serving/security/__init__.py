"""Authentication and authorization: TLS, API keys and tokens, checked before a request's body is read.

See docs/security.md.
"""

from scannery.serving.security.api_keys import ApiKey, KeyFile
from scannery.serving.security.config import SecurityConfig
from scannery.serving.security.principal import ANONYMOUS, Principal, Scope

__all__ = ["ANONYMOUS", "ApiKey", "KeyFile", "Principal", "Scope", "SecurityConfig"]
