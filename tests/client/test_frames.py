"""Data frames without pandas, and the command line as a module."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT_PANDAS = """
import sys
import pyarrow as pa
from scannery.client.response.arrow import frame
table = pa.table({"a": [1]})
sys.modules["pandas"] = None
try:
    frame(table)
except ModuleNotFoundError as error:
    print(error.name, error)
"""


@pytest.mark.system
def test_without_pandas_the_error_names_it():
    found = subprocess.run([sys.executable, "-c", WITHOUT_PANDAS], capture_output=True, text=True, check=True)
    assert found.stdout == "pandas to_pandas needs pandas, which is not installed: pip install pandas\n"


def test_the_command_runs_as_a_module():
    found = subprocess.run(
        [sys.executable, "-m", "scannery", "--help"], capture_output=True, text=True, check=True
    )
    assert "Usage: python -m scannery" in found.stdout
