"""The public names of `sparrow.spark`."""

import subprocess
import sys

import pytest

import sparrow.spark


def test_every_public_name_can_be_imported() -> None:
    assert all(getattr(sparrow.spark, name) is not None for name in sparrow.spark.__all__)


def test_names_of_the_previous_version_warn() -> None:
    with pytest.warns(DeprecationWarning, match="build_environment_archive"):
        assert sparrow.spark.build_archive is sparrow.spark.build_environment_archive


def test_importing_sparrow_spark_loads_neither_pyspark_nor_arrow() -> None:
    code = "import sys, sparrow.spark; print([name for name in ('pyspark', 'pyarrow', 'numpy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_missing_package_is_named_with_the_extra_that_has_it() -> None:
    code = "import sys; sys.modules['pyarrow'] = None; from sparrow.spark import MessagesGone"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert 'sparrow.spark.MessagesGone needs pyarrow: pip install "sparrowmq[spark]"' in done.stderr
