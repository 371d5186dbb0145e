"""The topics of one kind in an open store, and how a program makes one.

Law: a topic gets its kind under the append lock, only before its first message, and for good:
``topics.json`` says so. After an error the table counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rocketstore.arguments import checked
from rocketstore.config import BrokerRole
from rocketstore.errors import ArgumentError, FormatError, StoreError
from rocketstore.format.refusals import check_queue_id, check_topic
from rocketstore.process import OfOneProcess
from rocketstore.rules.topics import is_reserved
from rocketstore.storage.queues.topic_file import TopicFile

if TYPE_CHECKING:
    from rocketstore.storage.opening import StoreParts


class TopicsOfKind(OfOneProcess):
    """The topics of the kind `name`: ``batch`` or ``memory``.

    `kind` is what is asked about them, see `storage.queues.topic_kinds.TopicKind`.
    """

    def __init__(self, parts: StoreParts, name: str, *, check_open: Callable[[], None]) -> None:
        if not isinstance(name, str) or name not in parts.kinds.known:
            raise ArgumentError("kind", expected=" or ".join(parts.kinds.known), found=name)
        self.kind = parts.kinds.known[name]
        self._parts = parts
        self._check_open = check_open
        self._file = TopicFile(parts.layout, clock=parts.clock, disk=parts.disk)

    @property
    def names(self) -> frozenset[str]:
        """The topics at the moment."""
        return self._parts.kinds.of(self.kind.name)

    @checked
    def create(self, topic: str, queue_count: int = 1) -> None:
        """Make a topic one of this kind, for good: ``topics.json`` says so.

        Parameters
        ----------
        topic
            One that is one already stays as it is.
        queue_count
            What the table says; any queue id can be put to.

        Raises
        ------
        StoreError
            The topic has messages, dispatched or not, is of another kind, or one of the store's
            own; or the store is a slave, of whose topics its master's log tells.
        StoreClosedError
            The store was closed, or is that of the process that forked this one.
        """
        self._check_open()
        check_topic(topic)
        check_queue_id(queue_count)
        kind, parts, kinds = self.kind, self._parts, self._parts.kinds
        if parts.config.broker_role is BrokerRole.SLAVE:
            raise self._error(topic, "this is a slave", hint="make it in the master")
        if kinds.get(topic) is kind:
            return

        def marks(said: Mapping[str, Any]) -> Mapping[str, Any]:
            others = (one for one in kinds.known.values() if one is not kind)
            of_table = (said.get("attributes") or {}).get("queue.type")
            if of_table or any(one.claims(topic, said) for one in others):
                raise self._error(topic, f"{self._file.path} says that it is of another kind")
            kind.begin(topic)
            return kind.marks(said)

        if is_reserved(topic):
            raise self._error(topic, "a broker reserves its name")
        if topic in kinds:
            raise self._error(topic, f"it is a {kinds[topic].name} topic")
        with parts.log.held():
            given = (key for key, one in parts.log.counters.items() if one.next_offset)
            if any(key[0] == topic for key in (*given, *parts.queues.keys())):
                raise self._error(topic, "it has messages on the disk")
            try:
                kinds[topic] = kind
                self._file.mark(topic, queue_count, marks)
            except BaseException:
                with suppress(StoreError, FormatError):  # else it stays of that kind
                    kinds.read(parts.layout)
                raise

    def _error(self, topic: str, why: str, hint: str | None = None) -> StoreError:
        hint = hint or "choose another name; its messages could not be read any more"
        return StoreError(f"{topic} cannot become a {self.kind.name} topic: {why}", hint=hint)
