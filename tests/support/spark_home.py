"""How the JVMs of Spark are started in tests: quickly.

A JVM of Spark reads 15,000 classes, half of the processor time of a short run. Read once they are
kept, in the form in which a JVM maps them into its memory ("class data sharing"), in the cache of
pytest, for every JVM of this run and of later ones. A JVM that finds them to be of other jars or of
another Java goes without.
"""

import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from support.patience import START_S
from support.repository import ROOT

SHORT_LIVED_JVM = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    "-XX:ReservedCodeCacheSize=200m -XX:-UseCodeCacheFlushing"
)
"""No optimising compiler, no collector's threads: a JVM of a test ends before they would help.
Nor a sweeper: of the session that all tests share, it took three seconds."""

QUIET_SHARING = "-Xshare:auto -Xlog:disable -Xlog:all=error:stderr"
"""What a JVM says of classes that it cannot share goes to its output, which others read."""

CACHE = ROOT / ".pytest_cache" / "d" / "spark"

TRAINING = """
import sys
from pyspark import SparkContext
from pyspark.sql import SparkSession

place, store = sys.argv[1:]
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
builder = builder.config("spark.sql.shuffle.partitions", "2")
builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
from rocketstore.pipeline import register

register(spark)
frame = spark.read.format("rocketstore").load(store)
frame.filter("queueId = 0").groupBy("topic").count().orderBy("topic").collect()
frame.selectExpr("msgId", "body").write.parquet(f"{place}/rows")
rows = spark.read.parquet(f"{place}/rows")
rows.mapInArrow(lambda batches: batches, "msgId STRING, body BINARY").collect()
query = spark.readStream.format("rocketstore").option("startingOffsets", "earliest").load(store)
query = query.writeStream.format("noop").option("checkpointLocation", f"{place}/checkpoint")
query.trigger(availableNow=True).start().awaitTermination()
gateway = SparkContext._gateway
spark.stop()
gateway.shutdown()
gateway.proc.stdin.close()
gateway.proc.wait()
"""
"""Use what tests use; the JVM keeps the classes when it ends in order."""


@functools.cache
def spark_home() -> Path:
    """Return a home of Spark whose workers import PySpark as it is installed, with its bytecode.

    From ``python/lib/pyspark.zip`` each process that plans a stream compiles all of it again: three
    times the processor time, out of the ten seconds that Spark gives it to connect back.
    """
    specification = find_spec("pyspark")
    assert specification is not None
    assert specification.submodule_search_locations is not None
    (installed,) = specification.submodule_search_locations
    home = CACHE / _digest(installed)
    home.mkdir(parents=True, exist_ok=True)
    with _locked(home):
        for name in ("bin", "jars", "sbin"):
            if not (home / name).is_symlink():
                (home / name).symlink_to(Path(installed) / name)
    return home


@functools.cache
def jvm_options() -> str:
    """Return the options of a JVM of Spark; makes what it shares if it is not there yet."""
    home = spark_home()
    archive = home / "classes.jsa"
    with _locked(home):
        if not archive.exists():
            _train(home, archive)
    return f"{SHORT_LIVED_JVM} {QUIET_SHARING} -XX:SharedArchiveFile={archive}"


def java() -> str:
    """Return the Java that Spark starts."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    assert found is not None
    return found


def spark_environment() -> dict[str, str]:
    """Return the environment of a process that starts JVMs of Spark."""
    return {
        **os.environ,
        "JDK_JAVA_OPTIONS": jvm_options(),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def _train(home: Path, archive: Path) -> None:
    from support.golden import golden_case  # noqa: PLC0415 - unpacks

    place, made = home / "training", archive.with_suffix(".new")
    shutil.rmtree(place, ignore_errors=True)
    made.unlink(missing_ok=True)
    place.mkdir()
    environment = {
        **os.environ,
        "JDK_JAVA_OPTIONS": f"{SHORT_LIVED_JVM} {QUIET_SHARING}",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": (
            f'--driver-java-options "-XX:ArchiveClassesAtExit={made}" pyspark-shell'
        ),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(place),
    }
    command = [sys.executable, "-c", TRAINING, str(place), str(golden_case("basic") / "store")]
    done = subprocess.run(
        command, env=environment, cwd=place, capture_output=True, text=True, check=False,
        timeout=START_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    shutil.rmtree(place)
    # Where this Java keeps no classes there is none, and each JVM does without.
    if made.exists():
        made.rename(archive)


@contextlib.contextmanager
def _locked(home: Path) -> Iterator[None]:
    """Test processes run side by side."""
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _digest(installed: str) -> str:
    """Return what names this Java with these jars."""
    parts = (
        installed,
        version("pyspark"),
        os.path.realpath(java()),
        str(Path(java()).stat().st_mtime_ns),
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
