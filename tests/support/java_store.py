"""The genuine Apache RocketMQ 4.9.8 store, as a Python object.

``tests/interop/java`` is a Maven project of a few classes around ``DefaultMessageStore``. It is
built once, and again when a source changes; afterwards neither Maven nor a network is needed.
Where there is no JDK or Maven the calling test is skipped with that reason, except in CI, where it
fails.
"""

import atexit
import base64
import fcntl
import functools
import hashlib
import ipaddress
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Self

from support.line_process import CommandFailedError, LineProcess
from support.patience import START_S
from support.skipping import skip_but_in_ci
from support.spark_home import QUIET_SHARING, SHORT_LIVED_JVM

PROJECT = Path(__file__).resolve().parents[1] / "interop" / "java"
JAR = PROJECT / "target" / "java-store.jar"
LAST_TIMESTAMP_MS = 2**62

SMALL_FILES = {
    "mappedFileSizeCommitLog": 65536,
    "mappedFileSizeConsumeQueue": 2000,
    "maxHashSlotNum": 500,
    "maxIndexNum": 2000,
}
"""The sizes of the golden stores: every kind of file rolls within a few hundred messages."""

DISK_MAY_BE_FULL = "-Drocketmq.broker.diskSpaceWarningLevelRatio=1.0"
"""A broker refuses puts on a disk over 90 % full; how full a test machine's is, is not tested."""

__all__ = [
    "SMALL_FILES", "CommandFailedError", "JavaBuildError", "JavaStore", "build_jar", "java_command",
    "java_tool", "message_json", "require_java", "run_maven", "short_lived",
]  # fmt: skip


class JavaBuildError(Exception):
    """There is no JDK or Maven, or the build failed."""


def java_command(*jvm_options: str) -> list[str]:
    """Return the command of a process that serves the line protocol; builds the jar if needed."""
    build_jar()
    return [
        java_tool("java"),
        "-Xms256m",
        "-Xmx1g",
        DISK_MAY_BE_FULL,
        *jvm_options,
        "-jar",
        str(JAR),
    ]


def build_jar() -> Path:
    """Build the jar unless it is there and made from these very sources."""
    java_tool("java")
    target = PROJECT / "target"
    target.mkdir(exist_ok=True)
    stamp = target / "built-from"
    with (target / "build-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test processes run side by side
        digest = _source_digest()
        if JAR.is_file() and stamp.is_file() and stamp.read_text() == digest:
            return JAR
        run_maven(PROJECT, "package")
        stamp.write_text(digest)
        return JAR


def run_maven(project: Path, *arguments: str) -> None:
    """Run Maven, with what it has already if that is enough."""
    maven = [java_tool("mvn"), "-q", "-B", *arguments]
    result = subprocess.CompletedProcess[str](maven, 1)
    for offline in (["-o"], []):
        result = subprocess.run(
            [*maven, *offline],
            env={"MAVEN_OPTS": SHORT_LIVED_JVM, **os.environ},
            cwd=project,
            check=False,
            timeout=START_S,
            capture_output=True,
            text=True,
        )
        if result.returncode == 0:
            return
    raise JavaBuildError(f"{' '.join(maven)} failed in {project}:\n{result.stdout[-3000:]}")


@functools.cache
def short_lived() -> tuple[str, ...]:
    """Return what starts a JVM quickly; it shares the classes that the first one has read.

    Half of the processor time of a JVM that serves a test went into reading classes. What is
    measured does without: no optimising compiler works here.
    """
    jar = build_jar()
    classes = jar.with_suffix(".jsa")
    with (PROJECT / "target" / "build-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not classes.exists() or classes.stat().st_mtime < jar.stat().st_mtime:
            _keep_classes(classes)
    return (*SHORT_LIVED_JVM.split(), *QUIET_SHARING.split(), f"-XX:SharedArchiveFile={classes}")


def _keep_classes(classes: Path) -> None:
    made = classes.with_suffix(".new")
    made.unlink(missing_ok=True)
    quick = (*SHORT_LIVED_JVM.split(), *QUIET_SHARING.split())
    command = [java_tool("java"), *quick, f"-XX:ArchiveClassesAtExit={made}", "-jar", str(JAR)]
    with tempfile.TemporaryDirectory() as root, LineProcess(command) as process:
        process.ask("open", path=root, config=SMALL_FILES, start=True)
        process.ask("put", messages=[message_json("T", b"x", properties=[("KEYS", "k")])])
        process.ask("waitDispatched")
        process.ask("get", topic="T", queueId=0, offset=0, max=32, tags=None)
        process.ask("find", topic="T", key="k", max=32, begin=0, end=LAST_TIMESTAMP_MS)
        process.exit()
    # A Java that keeps none does without.
    if made.exists():
        made.rename(classes)


def require_java(build: Callable[[], object] = build_jar) -> None:
    """Skip the calling test where the genuine store cannot run, unless this is CI."""
    try:
        build()
    except JavaBuildError as missing:
        skip_but_in_ci(str(missing))


def java_tool(name: str) -> str:
    """Return the path of a program, ``java`` or ``mvn``."""
    home = os.environ.get("JAVA_HOME")
    if name == "java" and home and (Path(home) / "bin" / "java").is_file():
        return str(Path(home) / "bin" / "java")
    found = shutil.which(name)
    if found is None:
        raise JavaBuildError(f"no {name} on the PATH: the genuine store needs a JDK 11+ and Maven")
    return found


def _source_digest() -> str:
    digest = hashlib.sha256()
    for path in sorted([PROJECT / "pom.xml", *(PROJECT / "src").rglob("*.java")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def message_json(
    topic: str,
    body: bytes = b"",
    *,
    queue_id: int = 0,
    properties: Iterable[tuple[str, str]] = (),
    flag: int = 0,
    sys_flag: int = 0,
    born_timestamp_ms: int = 0,
    born_host: str = "127.0.0.1:0",
    store_host: str = "127.0.0.1:0",
) -> dict[str, Any]:
    """Return a message as ``JavaStore.put`` takes it."""
    return {
        "topic": topic,
        "queueId": queue_id,
        "body": base64.b64encode(body).decode("ascii"),
        "properties": [list(pair) for pair in properties],
        "flag": flag,
        "sysFlag": sys_flag,
        "bornTimestamp": born_timestamp_ms,
        "bornHost": born_host,
        "storeHost": store_host,
    }


_idle: list[LineProcess] = []
"""Processes whose store was closed; the next store needs no JVM of its own."""


@atexit.register
def _end_idle() -> None:
    while _idle:
        _idle.pop().kill()


class JavaStore:
    """A store directory opened by the genuine store, in a process that has no other one open.

    Parameters
    ----------
    path
        Store directory; made if missing.
    config
        Settings by their ``broker.conf`` keys.
    start
        False loads and recovers without lock or services, and without a clean shutdown.
    """

    def __init__(self, path: Path, config: dict[str, Any] | None = None, *, start: bool = True):
        self._process = _idle.pop() if _idle else LineProcess(java_command(*short_lived()))
        self._is_closed = False
        try:
            self.opened = self._process.ask(
                "open", path=str(path), config=config or {}, start=start
            )
        except BaseException:
            self._process.kill()
            raise

    @property
    def pid(self) -> int:
        """Process id of the JVM."""
        return self._process.pid

    def put(self, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Put single messages (``message_json``) and return one result each."""
        results: list[dict[str, Any]] = self._process.ask("put", messages=messages)["results"]
        return results

    def put_batch(self, messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Put messages as one client-encoded batch; the first one gives topic, queue and hosts."""
        envelope = {k: v for k, v in messages[0].items() if k not in ("body", "properties")}
        return self._process.ask("putBatch", envelope=envelope, messages=messages)

    def begin(self, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Store half messages of messages that have TRAN_MSG and PGROUP, as a broker does."""
        results: list[dict[str, Any]] = self._process.ask("begin", messages=messages)["results"]
        return results

    def end_transaction(
        self, producer_group: str, queue_offset: int, physical_offset: int, *, commits: bool
    ) -> int | None:
        """Let a broker commit or roll back; return the code that it answers, 0 for done."""
        code: int | None = self._process.ask(
            "endTransaction",
            producerGroup=producer_group,
            queueOffset=queue_offset,
            physicalOffset=physical_offset,
            commits=commits,
        )["code"]
        return code

    def check_transactions(self) -> dict[bytes, tuple[int, int]]:
        """Let a broker check once; return the places of the half messages that it asks about."""
        # It compares the time of op messages too, which have to be so much younger than the check.
        asked = self._process.ask("checkTransactions", timeoutMs=-60_000)["asked"]
        return {
            base64.b64decode(one["body"]): (one["queueOffset"], one["physicalOffset"])
            for one in asked
        }

    def consumer_offset(self, topic: str, group: str, queue_id: int) -> int:
        """Return where a broker has a group go on, -1 where that has no offset."""
        place = {"topic": topic, "group": group, "queueId": queue_id}
        offset: int = self._process.ask("consumerOffset", **place)["offset"]
        return offset

    def commit_offset(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Let a broker take an offset of a group; it writes its file when the store is closed."""
        place = {"topic": topic, "group": group, "queueId": queue_id}
        self._process.ask("commitOffset", **place, offset=offset)

    def get(
        self, topic: str, queue_id: int = 0, offset: int = 0, *, max_messages: int = 32,
        tags: str | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Return status, next, minimum and maximum offset, and the decoded messages."""
        answer = self._process.ask(
            "get", topic=topic, queueId=queue_id, offset=offset, max=max_messages, tags=tags
        )
        answer["messages"] = [_plain(message) for message in answer["messages"]]
        return answer

    def read_queue(self, topic: str, queue_id: int = 0) -> list[dict[str, Any]]:
        """Return every message that a consumer of the queue gets."""
        messages: list[dict[str, Any]] = []
        page = self.get(topic, queue_id, 0)
        while page["nextOffset"] < page["maxOffset"] or page["messages"]:
            messages += page["messages"]
            page = self.get(topic, queue_id, page["nextOffset"])
        return messages

    def find(self, topic: str, key: str, *, max_messages: int = 64) -> list[dict[str, Any]]:
        """Return what a query by key gives."""
        answer = self._process.ask(
            "find", topic=topic, key=key, max=max_messages, begin=0, end=LAST_TIMESTAMP_MS
        )
        return [_plain(message) for message in answer["messages"]]

    def offset_at(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Return what a search by time gives."""
        answer = self._process.ask(
            "offsetAt", topic=topic, queueId=queue_id, timestamp=timestamp_ms
        )
        return int(answer["offset"])

    def by_offset(self, physical_offset: int) -> dict[str, Any] | None:
        """Return the message at a physical offset."""
        message = self._process.ask("byOffset", physicalOffset=physical_offset)["message"]
        return None if message is None else _plain(message)

    def positions(self) -> tuple[int, int]:
        """Return minimum and maximum physical offset."""
        answer = self._process.ask("positions")
        return answer["minPhysicalOffset"], answer["maxPhysicalOffset"]

    def queues(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Return minimum and maximum offset of every queue.

        Left out are the delay topic's queues: loading makes 18 empty ones in memory.
        """
        return {
            (queue["topic"], queue["queueId"]): (queue["minOffset"], queue["maxOffset"])
            for queue in self._process.ask("queues")["queues"]
            if queue["topic"] != "SCHEDULE_TOPIC_XXXX"
        }

    def entries(self, topic: str, queue_id: int = 0) -> list[tuple[int, int, int]]:
        """Return the entries from the minimum offset on."""
        answer = self._process.ask("entries", topic=topic, queueId=queue_id)
        return [(physical, size, tags) for physical, size, tags in answer["entries"]]

    def wait_dispatched(self) -> None:
        """Wait until every message has its queue entry and index items."""
        self._process.ask("waitDispatched")

    def close(self) -> None:
        """Shut down in order."""
        if not self._is_closed:
            self._process.ask("close")
            _idle.append(self._process)
            self._is_closed = True

    def halt(self) -> None:
        """End the JVM at once, as a crash does."""
        self._process.tell_last("halt")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if kind is None and self._process.process.poll() is None:
            self.close()
        if not self._is_closed:
            self._process.kill()


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """Write IPv6 hosts the short way, and no properties as an empty object."""
    message["properties"] = message["properties"] or {}
    for name in ("bornHost", "storeHost"):
        literal, _, port = message[name].rpartition(":")
        if literal.startswith("["):
            message[name] = f"[{ipaddress.ip_address(literal[1:-1]).compressed}]:{port}"
    return message
