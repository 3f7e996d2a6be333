"""Ray is installed in the environment of `make test-ray` only."""

from __future__ import annotations

import os

if not os.environ.get("SCANNERY_TEST_RAY"):
    collect_ignore_glob = ["test_ray_*.py"]
