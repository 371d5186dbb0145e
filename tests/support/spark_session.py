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
import marshal, os, socket, sys

if sys.argv[1] != "-m":  # which version it is
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
asked = marshal.dumps((sys.argv[2:], dict(os.environ)))
place = chr(0) + sys.argv[0]  # no file
link, server = (socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2))
is_first = False
while not is_first and link.connect_ex(place):
    try:
        server.bind(place)
    except OSError:
        continue  # another one was first
    server.listen()
    is_first = os.fork() == 0
if not is_first:
    server.close()
    socket.send_fds(link, [asked], [0, 1, 2])
    link.recv(1)  # until the end of what serves it
    os._exit(0)

import fcntl, gc, runpy, select, signal
sys.path[0] = os.getcwd()
import deltalake, pandas, pyarrow.compute, pyarrow.parquet
import pyspark.worker, pyspark.sql.worker.plan_data_source_read, rocketstore.pipeline.tables

gc.freeze()
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
poll = select.poll()
poll.register(0, 0)  # Spark hangs up
poll.register(server, select.POLLIN)
while 0 not in dict(poll.poll()):
    link, _ = server.accept()
    asked, streams, _, _ = socket.recv_fds(link, 1 << 20, 3)
    if os.fork() == 0:
        break
    for one in (*streams, link.detach()):
        os.close(one)
else:
    os._exit(0)

server.close()
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
for name, value in (("OWN", os.getpid()), ("SIG", signal.SIGTERM), ("FL", os.O_ASYNC)):
    fcntl.fcntl(link, getattr(fcntl, "F_SET" + name), value)  # ends as the one that Spark knows
for number, stream in enumerate(streams):
    os.dup2(stream, number)
    os.close(stream)
os.environ.clear()
sys.argv, more = marshal.loads(asked)
os.environ.update(more)
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
"""The interpreter of Spark's Python: the first one imports what all would, and is forked for each.

Those of the cluster, which are killed amid their work, import for themselves.
"""


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
    """Start a streaming query, let it do what there is, and raise what it failed with."""
    query = start()
    try:
        ended = query.awaitTermination(PATIENCE_S)
        assert ended, f"no end after {PATIENCE_S} s: {query.status}\n{what_runs()}"
    finally:
        query.stop()
    if query.exception() is not None:
        raise query.exception()


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
