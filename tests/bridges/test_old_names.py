"""The names under which released versions had the modules of frameworks."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import scannery.adapters.connection as old
    from scannery.adapters.ids import pages
    from scannery.adapters import attributes
import scannery.bridges.attributes, scannery.bridges.connection as new, scannery.bridges.ids
assert old is new and old.__spec__.name == "scannery.bridges.connection", old.__spec__
assert pages is scannery.bridges.ids.pages and attributes is scannery.bridges.attributes
for name in ("vertex", "openai", "nothing"):
    try:
        __import__(f"scannery.adapters.{name}")
    except ModuleNotFoundError:
        pass
    else:
        raise AssertionError(name)
[warning] = caught
print(warning.category.__name__, warning.filename, warning.message)
"""


@pytest.mark.system
def test_old_names_are_the_same_modules_with_a_warning() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("DeprecationWarning <string> scannery.adapters is now scannery.bridges")
