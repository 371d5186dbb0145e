"""The genuine Apache RocketMQ store of 5.1.3, for batch queues, as a Python object.

``tests/interop/java5`` names its jars and has the one class that drives it, which Java compiles
when it runs it.
"""

from __future__ import annotations

import base64
import fcntl
from pathlib import Path
from typing import Any, Self

from support.java_store import DISK_MAY_BE_FULL, SMALL_FILES, java_tool, run_maven
from support.line_process import LineProcess
from support.spark_home import SHORT_LIVED_JVM

PROJECT = Path(__file__).resolve().parents[1] / "interop" / "java5"
LIST_JARS = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath"
OPEN = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
)
"""What the store unmaps its files through."""

BATCH_QUEUE_FILE = 46 * 100
PAGE = 32
"""Records that one read asks for."""


def class_path(project: Path = PROJECT) -> str:
    """Return the jars' paths; asks Maven if a jar is missing or the list older than the project."""
    java_tool("java")
    kept = project / "target" / "class-path"
    kept.parent.mkdir(exist_ok=True)
    with (kept.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test processes run side by side
        listed = kept.read_text() if kept.exists() else ""
        is_old = not listed or kept.stat().st_mtime < (project / "pom.xml").stat().st_mtime
        if is_old or not all(Path(jar).exists() for jar in listed.split(":")):
            run_maven(project, LIST_JARS, f"-Dmdep.outputFile={kept}")
        return kept.read_text()


class JavaBatchStore:
    """One store after the other, with one batch topic, in a JVM that lives as long as this."""

    def __init__(self) -> None:
        command = [java_tool("java"), *SHORT_LIVED_JVM.split(), *OPEN, DISK_MAY_BE_FULL]
        self._process = LineProcess(
            [*command, "-cp", class_path(), str(PROJECT / "BatchQueues.java")]
        )

    def open(self, path: Path, topic: str) -> None:
        """Open a store as a broker at its start, and wait until its log is dispatched."""
        settings = {**SMALL_FILES, "mapperFileSizeBatchConsumeQueue": BATCH_QUEUE_FILE}
        self._process.ask("open", path=str(path), topic=topic, config=settings)

    def put(self, queue_id: int, *bodies: str) -> dict[str, Any]:
        """Put messages as one batch; return status and queue offset."""
        encoded = [base64.b64encode(body.encode()).decode() for body in bodies]
        return self._process.ask("put", queueId=queue_id, bodies=encoded)

    def read(self, queue_id: int) -> list[tuple[int, str]]:
        """Return queue offset and body of every message, read from the first offset to the last."""
        page = self._process.ask("read", queueId=queue_id, offset=0, max=0)
        found, offset = [], page["minOffset"]
        while offset < page["maxOffset"]:
            page = self._process.ask("read", queueId=queue_id, offset=offset, max=PAGE)
            assert page["messages"], f"nothing at offset {offset} of {page['maxOffset']}"
            found += [(place, base64.b64decode(body).decode()) for place, body in page["messages"]]
            offset = found[-1][0] + 1
        return found

    def close(self) -> None:
        """Close the store in order."""
        self._process.ask("close")

    def kill(self) -> None:
        """End the JVM as ``kill -9`` does."""
        self._process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
