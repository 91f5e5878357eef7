"""Arrow in a server process: it is kept from importing pandas."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec


class _WithoutPandas:
    """A finder by which pandas is not installed."""

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError(name=name)
        return None


def import_arrow_without_pandas() -> None:
    """Let Arrow look for pandas now, and find none.

    Arrow looks once, when it first converts an array, and imports pandas if it is installed. A server has no use for
    it: the import takes 50 MB and a third of a second, in which nobody is served. It also imports `numpy.ma` with the
    first array of NumPy's.
    """
    import numpy as np
    import pyarrow as pa

    finder = _WithoutPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
        pa.array(np.zeros(1))
    finally:
        sys.meta_path.remove(finder)
