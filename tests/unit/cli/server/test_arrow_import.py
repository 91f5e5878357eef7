"""A server process does not import pandas, which Arrow would do where it is installed."""

import subprocess
import sys

CONVERT = """
import sys
from sparrow.cli.server.arrow_import import import_arrow_without_pandas

import_arrow_without_pandas()

import numpy as np
import pyarrow as pa

assert pa.array(np.arange(3)).to_numpy().tolist() == [0, 1, 2]
assert "pandas" not in sys.modules, "Arrow has imported pandas"

import pandas  # it is installed, and can be imported by whoever needs it
"""


def test_arrow_converts_arrays_without_pandas() -> None:
    done = subprocess.run([sys.executable, "-c", CONVERT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
