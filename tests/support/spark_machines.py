"""Spark on machines: a driver and a master on the first one, workers on two, stores on a fourth.

The stores are on an S3 server, and no disk is shared but one directory for what needs one.
"""

import contextlib
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self

from support.held_tasks import HELD_TASKS
from support.line_process import LineProcess
from support.machines import Machines, stopped
from support.repository import ROOT
from support.s3_server import CREDENTIALS
from support.spark_cluster import MASTER, WORKER, deployed, wait_for
from support.spark_home import spark_environment
from support.spark_works import LOST_AFTER_S

STOPPED_S = 60
WORKERS = ("first", "second")


class SparkMachines:
    """The machines with all that runs on them; it ends with a ``with`` block.

    Attributes
    ----------
    shared
        The directory that all machines reach.
    """

    def __init__(self, directory: Path, stores: dict[str, Path]) -> None:
        self.shared = directory / "shared"
        self._hold = self.shared / ".hold"
        self._logs, disk = directory / "logs", directory / "disk"
        for one in (self.shared, self._logs, disk):
            one.mkdir()
        self._stores = stores
        self._machines = Machines(["driver", *WORKERS, "s3"], disk)
        self._ending = contextlib.ExitStack()
        self._workers: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as ending:
            ending.enter_context(self._machines)
            addresses = self._machines.addresses
            given = [f"{name}={directory}" for name, directory in self._stores.items()]
            self._s3 = ending.enter_context(self._python("s3", "s3_machine", *given))
            host = addresses["driver"]
            master = f"spark://{host}:7077"
            self._java("driver", MASTER, r"I have been elected leader", "--port", "7077")
            for name in WORKERS:
                size = (
                    "--cores",
                    "1",
                    "--memory",
                    "1g",
                    "--work-dir",
                    f"{self._machines.place}/work",
                )
                self._workers[name] = self._java(
                    name, WORKER, r"Successfully registered", *size, master
                )
            uri = self._s3.ask("uri")["uri"]
            works = self._python("driver", "spark_works", uri, str(self.shared), first=master)
            self._driver = ending.enter_context(works)
            self._ending = ending.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ending.__exit__(*exception)  # type: ignore[arg-type]

    def run(self, work: str, trouble: str = "none", out: str = "out") -> dict[str, Any]:
        """Run one of `spark_works.Works`, and let a machine have trouble amid it.

        Returns its `outcome`, the `lost` executors, and whether the trouble came `amid` the work.
        """
        mark, is_over = self.shared / f".{out}", threading.Event()
        with ThreadPoolExecutor(1) as pool:
            amid = pool.submit(self._trouble, trouble, mark, is_over)
            try:
                answer = self._driver.ask(work, out=out, mark=str(mark))
            finally:
                is_over.set()
            return answer | {"amid": amid.result()}

    def objects(self, name: str, directory: Path) -> Path:
        """Copy what is on the object store under a name into a directory, and return that."""
        self._s3.ask("copy", name=name, directory=str(directory))
        return directory

    def _trouble(self, kind: str, mark: Path, is_over: threading.Event) -> bool:
        """Let it last from when each worker has a task to the end of the work, or longer."""
        while not mark.exists() and not is_over.wait(0.02):
            pass
        amid = not is_over.is_set()
        least_s = STOPPED_S if kind == "stopped" else 0
        begun = time.monotonic()
        with self._happening(kind):
            self._hold.unlink(missing_ok=True)
            is_over.wait()
            while (left := least_s - (time.monotonic() - begun)) > 0:
                time.sleep(left)  # what happens lasts so long
        return amid

    def _happening(self, kind: str) -> AbstractContextManager[None]:
        if kind == "cut_off":
            return self._machines.cut_off("second")
        if kind == "stopped":
            return stopped(self._workers["first"])
        return self._machines.slow("driver") if kind == "slow" else contextlib.nullcontext()

    def _environment(self, name: str) -> dict[str, str]:
        place, known = self._machines.place, spark_environment()
        # Files about JVMs are in /tmp by their numbers, and machines count for themselves.
        options = f"-XX:-UsePerfData -Dspark.worker.timeout={LOST_AFTER_S} -Djava.io.tmpdir={place}"
        own = {"SPARK_LOCAL_IP": self._machines.addresses[name], "TMPDIR": place}
        own[HELD_TASKS] = str(self._hold)
        own["JDK_JAVA_OPTIONS"] = f"{known['JDK_JAVA_OPTIONS']} {options}"
        own |= {"SPARK_LOCAL_DIRS": f"{place}/local", "PYTHONPATH": str(ROOT / "tests")}
        return {**known, **CREDENTIALS, **own, "SPARK_SCALA_VERSION": "2.13"}

    def _python(self, name: str, module: str, *given: str, first: str | None = None) -> LineProcess:
        host = self._machines.addresses[name]
        arguments = (*([first] if first else []), host, *given)
        command = (sys.executable, "-m", f"support.{module}", *arguments)
        return LineProcess(
            self._machines.command(name, *command), environment=self._environment(name)
        )

    def _java(self, name: str, kind: str, said: str, *given: str) -> subprocess.Popen[bytes]:
        log = self._logs / f"{name}-{kind.rpartition('.')[2]}.log"
        command = [*deployed(kind, self._machines.addresses[name]), *given]
        with log.open("wb") as output:
            process = self._machines.start(
                name, command, stdout=output, stderr=output, env=self._environment(name)
            )

        def look() -> str | None:
            found = re.search(said, log.read_text(errors="replace"))
            return found and found[0]

        wait_for(look, lambda: process.poll() is None, log)
        return process
