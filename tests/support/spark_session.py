"""One Spark session for the whole test run, with what makes it quick and quiet."""

from __future__ import annotations

import os
import shutil
import sys

import pytest

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def require_java() -> None:
    """Skip the calling test where no Java is, unless this is CI."""
    if os.environ.get("JAVA_HOME") or shutil.which("java"):
        return
    reason = "no JDK: Spark needs Java 17 or newer (install a JDK, or set JAVA_HOME)"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def start_session(directory: str, master: str = "local[2]"):
    """Start the session; `directory` takes what Spark writes."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession  # noqa: PLC0415 - reads the environment set above

    builder = SparkSession.builder.master(master).appName("rocketstore tests")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.sql.warehouse.dir", f"{directory}/warehouse")
    builder = builder.config("spark.local.dir", f"{directory}/local")
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session
