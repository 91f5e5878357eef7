"""Which installed packages go into the environment of Spark's executors."""

import pytest

from sparrow.spark.runtime import environment_archive
from sparrow.spark.runtime.environment_archive import PackageWithExtras, dependency_closure, required_package


@pytest.mark.parametrize(
    ("requirement", "extras", "expected"),
    [
        ("lz4>=4.3; sys_platform != 'win32'", (), PackageWithExtras("lz4")),
        ("Typing_Extensions (>=4)", (), PackageWithExtras("typing-extensions")),
        ('numpy>=2.0; extra == "tables"', (), None),
        ('numpy>=2.0; extra == "tables"', ("server", "tables"), PackageWithExtras("numpy")),
        ("sparrowmq[cli, tables]; extra == 'server'", ("server",), PackageWithExtras("sparrowmq", {"cli", "tables"})),
        ("uvloop; sys_platform != 'win32' and extra == 'speed'", ("speed",), PackageWithExtras("uvloop")),
    ],
)
def test_a_requirement_counts_if_its_extra_is_wanted(requirement, extras, expected):
    assert required_package(requirement, frozenset(extras)) == expected


def test_executors_get_the_packages_of_the_server_and_of_compression_but_no_spark(monkeypatch):
    class Installed:
        def __init__(self, requires):
            self.requires = requires

    packages = {
        "sparrowmq": [
            "msgspec>=0.19",
            'zstandard; extra == "compression"',
            'numpy; extra == "tables"',
            'sparrowmq[tables]; extra == "server"',
            'pyspark; extra == "spark"',
            'sparrowmq[server]; extra == "spark"',
        ],
        "pandas": ["numpy", 'sqlalchemy; extra == "sql"'],
        **{key: [] for key in ("msgspec", "zstandard", "numpy", "pyspark", "sqlalchemy")},
    }
    monkeypatch.setattr(environment_archive, "distribution", lambda name: Installed(packages[name]))
    assert dependency_closure(["sparrowmq", "pandas"]) == ["msgspec", "numpy", "pandas", "sparrowmq", "zstandard"]
