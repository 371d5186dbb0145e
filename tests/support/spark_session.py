"""One Spark session for the whole test run, with what makes it quick and quiet.

A query that hangs must not hang the run: it is stopped with a limit, and what its threads and
workers were at is told.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil

from support.patience import PATIENCE_S
from support.skipping import skip_but_in_ci
from support.spark_home import jvm_options, spark_home

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.sql.streaming.stopTimeout": "30s",
    # After a lost shuffle file (test_rebuild_faults.py) no heartbeat succeeds any more where driver
    # and executor are one; at the 60th in a row, after ten minutes, the JVM would end.
    "spark.executor.heartbeat.maxFailures": "1000000",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    # Code that is made for rows of which there are few: to compile it takes longer than to do it.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # The other one starts a process, readlink, for each file that it renames.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing"
        ".FileSystemBasedCheckpointFileManager"
    ),
}

WARM_PYTHON = """#!/bin/sh
"exec" "{python}" "$0" "$@"
import gc, importlib, os, runpy, sys

if sys.argv[1:3] != ["-m", "pyspark.daemon"]:
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
sys.path[0] = os.getcwd()
_, _, *sys.argv = sys.argv
loaded = [sys.argv[1], "pyspark.sql.worker.plan_data_source_read", "rocketstore.pipeline.tables"]
if sys.argv[1] == "pyspark.worker":
    loaded += ["pandas", "pyarrow.compute", "pyarrow.parquet", "deltalake"]
for name in loaded:
    importlib.import_module(name)
gc.freeze()
runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)
"""
"""The interpreter of Spark's workers: their daemon imports what each of them would, before it forks
them. Those of the cluster, which are killed amid their work, import for themselves.
"""

CONNECT_TIMEOUT = "Python worker failed to connect back"


def require_java() -> None:
    """Skip the calling test where no Java is, unless this is CI."""
    if not (os.environ.get("JAVA_HOME") or shutil.which("java")):
        skip_but_in_ci("no JDK: Spark needs Java 17 or newer (install a JDK, or set JAVA_HOME)")


def warm_python(directory: str) -> str:
    """Write the interpreter of Spark's workers into a directory; return its path."""
    python = Path(directory, "python")
    python.parent.mkdir(exist_ok=True)
    python.write_text(WARM_PYTHON.format(python=sys.executable))
    python.chmod(0o755)
    return str(python)


def submitted() -> str:
    """Return what gives the settings to a program that starts its own session."""
    return " ".join(
        [*(f"--conf {name}={value}" for name, value in SETTINGS.items()), "pyspark-shell"]
    )


def start_session(directory: str, master: str = "local[2]"):
    """Start the session; `directory` takes what Spark writes."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = warm_python(directory)
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["SPARK_HOME"] = str(spark_home())
    from pyspark.sql import SparkSession  # noqa: PLC0415 - reads the environment set above

    builder = SparkSession.builder.master(master).appName("rocketstore tests")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.driver.extraJavaOptions", jvm_options())
    builder = builder.config("spark.sql.warehouse.dir", f"{directory}/warehouse")
    builder = builder.config("spark.local.dir", f"{directory}/local")
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


def run_to_its_end(start) -> None:
    """Start a streaming query, wait until it has done what there is, and raise what it failed with.

    Once more where a worker took longer than the ten seconds, a constant of Spark's, that it has to
    connect back: that says something of the machine, and the query has done nothing yet.
    """
    for is_last in (False, True):
        try:
            query = start()
            try:
                ended = query.awaitTermination(PATIENCE_S)
                assert ended, f"no end after {PATIENCE_S} s: {query.status}\n{what_runs()}"
            finally:
                query.stop()
            if query.exception() is not None:
                raise query.exception()  # noqa: TRY301 - as a failed start
        except Exception as error:
            if is_last or CONNECT_TIMEOUT not in str(error):
                raise
        else:
            return


def what_runs() -> str:
    """Return what the threads of the driver's JVM and the Python processes below it are at."""
    told = []
    for process in psutil.Process().children(recursive=True):
        command = " ".join(process.cmdline())
        told.append(f"{process.pid} {process.status()} {command[-200:]}")
        if "org.apache.spark" in command and shutil.which("jstack"):
            stacks = ["jstack", str(process.pid)]
            told.append(subprocess.run(stacks, capture_output=True, text=True, check=False).stdout)
    return "\n".join(told)
