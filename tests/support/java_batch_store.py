"""The genuine Apache RocketMQ store of 5.1.3, for batch queues, as a Python object.

``tests/interop/java5`` names its jars and has the one class that drives it.
"""

import base64
from pathlib import Path
from typing import Any, Self

from support.java_program import OPEN, JavaProgram
from support.java_store import DISK_MAY_BE_FULL, SMALL_FILES

PROJECT = Path(__file__).resolve().parents[1] / "interop" / "java5"
BATCH_QUEUE_FILE = 46 * 100
PAGE = 32
"""Records that one read asks for."""


class JavaBatchStore:
    """One store after the other, with one batch topic, in a JVM that lives as long as this."""

    def __init__(self) -> None:
        options = (*OPEN, DISK_MAY_BE_FULL)
        self._process = JavaProgram(PROJECT, PROJECT / "BatchQueues.java", options)

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
