"""The genuine Apache RocketMQ clients of 4.9.8 and 5.5.0, as a Python object: see ``Client.java``.

Where there is no JDK or Maven the calling test is skipped with that reason, except in CI.
"""

from functools import partial
from pathlib import Path
from typing import Any

from support.java_program import JavaProgram, class_path
from support.java_store import require_java
from support.line_process import InHome
from support.patience import PATIENCE_S

PROJECT = Path(__file__).resolve().parents[1] / "interop" / "javaclient"
NEWER_PROJECT = PROJECT / "newer"
jars = partial(class_path, PROJECT)

__all__ = ["NEWER_PROJECT", "PROJECT", "JavaClient", "jars", "require_java"]


class JavaClient(InHome):
    """Producers and consumers in one JVM, each known by its group; of 4.9.8 unless told."""

    ends_in_order = True

    def __init__(self, name_server: str, project: Path = PROJECT) -> None:
        super().__init__()  # the offsets of broadcast consumers are there too
        options = [f"-Duser.home={self._home.name}", "-Drocketmq.client.rebalance.waitInterval=500"]
        self._process = JavaProgram(project, PROJECT / "Client.java", options, name_server)

    def send(
        self, topic: str, *messages: dict[str, Any], group: str = "P", how: str = "sync"
    ) -> list[dict[str, Any]]:
        """Send messages one by one; return what the client says of each.

        `how` is sync, async, oneway, of which the client says nothing, or selector: the keys choose
        the queue. The group "traced" tells of its sends, and "vip" uses the second port.
        """
        answer = self._process.ask("send", group=group, topic=topic, messages=messages, how=how)
        results: list[dict[str, Any]] = answer["results"]
        return results

    def send_batch(self, topic: str, *bodies: str) -> None:
        """Send messages as one batch."""
        messages = [{"body": body} for body in bodies]
        self._process.ask("sendBatch", group="P", topic=topic, messages=messages)

    def send_transactions(self, topic: str, *ends: str) -> None:
        """Send half messages whose bodies say how they end."""
        messages = [{"body": one, "ends": one} for one in ends]
        self._process.ask("sendTransaction", group="T", topic=topic, messages=messages)

    def request(self, topic: str, *bodies: str, group: str = "P") -> list[str]:
        """Send requests one by one; return the replies, which its consumers send."""
        messages = [{"body": body} for body in bodies]
        answer = self._process.ask("request", group=group, topic=topic, messages=messages)
        replies: list[str] = answer["replies"]
        return replies

    def consume(
        self, topic: str, group: str, expression: str = "*", kind: str = "push", **more: Any
    ) -> None:
        """Start a consumer of a group, by its kind: push, pull or lite."""
        asked = {"group": group, "topic": topic, "expression": expression, "kind": kind}
        self._process.ask("consume", **asked, **more)

    def received(self, group: str, count: int, timeout_s: float = PATIENCE_S) -> list[Any]:
        """Return so many messages that a consumer got, fewer where they do not come in time."""
        wanted = {"group": group, "count": count, "timeoutMs": int(timeout_s * 1000)}
        messages: list[Any] = self._process.ask("received", **wanted)["messages"]
        return messages

    def queue_count(self, topic: str, group: str) -> int:
        """Return how many queues of a topic a push consumer has now."""
        count: int = self._process.ask("queues", topic=topic, group=group)["count"]
        return count

    def close_consumer(self, group: str) -> None:
        """Stop a consumer."""
        self._process.ask("closeConsumer", group=group)
