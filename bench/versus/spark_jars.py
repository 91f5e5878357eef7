"""Spark's own Kafka connector, fetched once with Maven.

The jars are stored beside those of the official brokers in build/, in a folder named after their pom. If Java, Maven
or the registry is missing, `PeerMissing` names the missing one.
"""

from __future__ import annotations

import fcntl
import re
import shutil
from pathlib import Path

import pyspark
from bench.versus.peers.peer import PeerMissing
from tests.interop import official

SCALA = "2.13"
CONNECTOR_VERSION = "4.2.0"
"""Not PySpark's own, 4.3.0: Maven finds no connector of that one, and this is the newest before it."""
TOKENS_VERSION = "4.0.0"
"""Of the connector's part for delegation tokens, which no scan uses: the newest that Maven finds."""
POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>bench</groupId>
  <artifactId>spark-kafka</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencyManagement>
    <dependencies>
      <dependency>
        <groupId>org.apache.spark</groupId>
        <artifactId>spark-token-provider-kafka-0-10_{scala}</artifactId>
        <version>{tokens_version}</version>
      </dependency>
    </dependencies>
  </dependencyManagement>
  <dependencies>
    <dependency>
      <groupId>org.apache.spark</groupId>
      <artifactId>spark-sql-kafka-0-10_{scala}</artifactId>
      <version>{version}</version>
    </dependency>
  </dependencies>
</project>
"""


def kafka_connector(*, is_fetch_allowed: bool) -> list[Path]:
    """Return the jars of the connector and of its dependencies that PySpark does not include."""
    if shutil.which("java") is None:
        raise PeerMissing("no java on the path")
    folder = official.BUILD / f"spark-kafka-{CONNECTOR_VERSION}"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:  # two runs may need the same jars
        fcntl.flock(lock, fcntl.LOCK_EX)
        pom = folder / "pom.xml"
        pom.write_text(POM.format(scala=SCALA, version=CONNECTOR_VERSION, tokens_version=TOKENS_VERSION))
        jars = folder / f"jars-{official.fingerprint([pom])}"
        if not jars.exists():
            if not is_fetch_allowed:
                raise PeerMissing("Spark's Kafka connector is not installed yet, and a smoke run fetches nothing")
            _fetch(pom, jars)
    own = {_artifact(path) for path in (Path(pyspark.__file__).parent / "jars").iterdir()}
    return sorted(path for path in jars.glob("*.jar") if _artifact(path) not in own)


def _artifact(jar: Path) -> str:
    """Return the name without a version; a jar that Spark has in another version is not added."""
    return re.sub(r"-\d+\.\d[^_]*$", "", jar.name)


def _fetch(pom: Path, jars: Path) -> None:
    if shutil.which("mvn") is None:
        raise PeerMissing("no mvn on the path")
    with official.whole(jars) as unfinished:
        goal = ("dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={unfinished}")
        output = official.run(("mvn", "-q", "-B", "-f", str(pom), *goal), official.FETCH_TIMEOUT_S)
        if output is not None:
            raise PeerMissing(f"Maven could not fetch {pom.parent.name}: {output[-500:]}")
