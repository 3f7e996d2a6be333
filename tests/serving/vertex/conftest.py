"""The managed service's clients are installed in the environment of `make test-clients` only."""

from __future__ import annotations

import os

if not os.environ.get("SCANNERY_TEST_CLIENTS"):
    collect_ignore_glob = ["*/test_official_*.py", "test_official_*.py"]
