"""A real standalone cluster of Spark on this machine: a master and workers, from PySpark's jars.

Each is a process of its own and talks over sockets, as on many machines; what is not the same is
the disk, which they share.
"""

import contextlib
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import psutil

from support.patience import START_S
from support.spark_home import java, spark_environment, spark_home

MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"


class SparkCluster:
    """A master and `workers` workers of one core each; stopped at the end of a ``with`` block."""

    def __init__(self, directory: Path, workers: int = 2) -> None:
        self.directory = directory
        self.url = ""
        self.workers: list[subprocess.Popen[bytes]] = []
        self._count = workers
        self._started = 0
        self._master: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self._master = self._start("master", MASTER, "--port", "0")
            self.url = self._said(self._master, "master", r"Starting Spark master at (spark://\S+)")
            for _ in range(self._count):
                self.add_worker()
        except BaseException:
            self.__exit__()
            raise
        return self

    def add_worker(self) -> None:
        """Start a worker and wait until the master knows it."""
        name = f"worker-{self._started}"
        self._started += 1
        work = self.directory / name
        size = ("--cores", "1", "--memory", "1g", "--work-dir", str(work))
        worker = self._start(name, WORKER, "--port", "0", *size, self.url)
        self.workers.append(worker)
        self._said(worker, name, r"Successfully registered with master (\S+)")

    def kill_executor(self, worker: subprocess.Popen[bytes]) -> None:
        """Kill the executor of a worker, which starts another, with its Python processes."""
        for process in _descendants(worker.pid):
            with contextlib.suppress(psutil.NoSuchProcess):  # those of Python end with it
                process.kill()

    def kill_worker(self, worker: subprocess.Popen[bytes]) -> None:
        """Kill a worker with its executor, as a machine that loses power."""
        self.workers.remove(worker)
        self.kill_executor(worker)
        worker.kill()
        worker.wait()

    def __exit__(self, *_: object) -> None:
        for process in [*self.workers, self._master]:
            if process is not None and process.poll() is None:
                self.kill_executor(process)
                process.kill()
                process.wait()

    def environment(self) -> dict[str, str]:
        """Return the environment of a driver that uses this cluster."""
        return {**spark_environment(), "SPARK_LOCAL_DIRS": str(self.directory / "local")}

    def _start(self, name: str, kind: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = deployed(kind, "127.0.0.1")
        with (self.directory / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [*command, *arguments],
                stdout=log,
                stderr=log,
                env={**self.environment(), "SPARK_SCALA_VERSION": "2.13"},
                cwd=self.directory,
            )

    def _said(self, process: subprocess.Popen[bytes], name: str, pattern: str) -> str:
        log = self.directory / f"{name}.log"

        def look() -> str | None:
            found = re.search(pattern, log.read_text(errors="replace"))
            return found[1] if found else None

        return wait_for(look, lambda: process.poll() is None, log)


def deployed(kind: str, host: str) -> list[str]:
    """Return the command of a master or worker, as `spark-class` asks a JVM of its own for it."""
    home = spark_home()
    # What was trained for the class path of drivers serves only the same one.
    (first,) = (home / "jars").glob("slf4j-api-*.jar")
    command = [java(), "-Xmx256m", "-cp", f"{home}/conf:{first}:{home}/jars/*", kind]
    return [*command, "--host", host, "--webui-port", "0"]


def wait_for(look: Callable[[], str | None], is_alive: Callable[[], bool], log: Path) -> str:
    """Return what `look` finds once it finds something; the death of its process ends the wait."""
    end = time.monotonic() + START_S
    while time.monotonic() < end and is_alive():
        found = look()
        if found is not None:
            return found
        time.sleep(0.05)  # between two looks; the result does not depend on it
    raise AssertionError(f"{log.name}: {log.read_text(errors='replace')[-3000:]}")


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []
