"""Kinds of topics: what makes the queues of some topics unlike those of all others.

``config/topics.json`` states the kind of a topic, and every opening reads it: the store that
is written, also by ``import`` and the sink's commit, the one that is only read, verify and repair.
Writer, dispatch, recovery, readers and retention call the `TopicKind`; a plain topic has none.
How to add one: docs/how-it-works/kinds-of-topics.md.

Law: a put that no consumer would find is refused by name, whichever class opened the store, and so
is a store whose table names a kind that is not known. A topic gets a kind only under the append
lock, and only before its first message (`TopicsOfKind.create`).
"""

# ruff: noqa: ARG002, B027 - methods that a kind does not override do nothing

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from rocketstore.arguments import enter_by_name
from rocketstore.errors import FormatError
from rocketstore.events import get_logger
from rocketstore.format.metadata_json import QUEUE_TYPE, TOPICS_FILE
from rocketstore.rules.queue_kinds import refuse_unknown
from rocketstore.rules.topics import is_reserved
from rocketstore.storage.files.whole_file import read_with_backup
from rocketstore.storage.queues.topic_file import TOPIC_TABLE, decoded_topics

if TYPE_CHECKING:
    from pathlib import Path

    from rocketstore.format.known_ends import QueueEnds
    from rocketstore.format.stored_message import StoredMessage
    from rocketstore.message import Message
    from rocketstore.native.log_end import QueueCounter, Record
    from rocketstore.rules.files import FileFinding
    from rocketstore.scan.columns import RecordColumns
    from rocketstore.storage.layout import StoreLayout
    from rocketstore.units import QueueKey

_log: Final = get_logger(__name__)


class TopicKind(ABC):
    """What differs in the topics of one kind; everything else is as in a plain topic.

    A store that is only read asks `claims`, `queue`, `queue_keys` and `pages`. A queue answers what
    a `ConsumeQueue` does: `min_offset`, `max_offset`, `first_offset`, `entries_from`, `extension`,
    and `records`, the log of its messages where that is not the store's.

    `counters` are those of its queues, which no plain put looks at. One that is not `is_on_disk`
    keeps its messages in a `log` of its own, and has neither dispatch nor recovery.
    """

    name: ClassVar[str]
    mark: ClassVar[str | None] = QUEUE_TYPE
    """Text that a table with topics of this kind contains; with None every table is parsed."""
    is_on_disk: ClassVar[bool] = True
    log: Any = None

    def __init__(self) -> None:
        self.counters: dict[tuple[str, int], QueueCounter] = {}

    # --- which topics ---------------------------------------------------------------------------

    @abstractmethod
    def claims(self, topic: str, said: Mapping[str, Any]) -> bool:
        """Whether the settings of a topic make it one of this kind."""

    @abstractmethod
    def marks(self, said: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the settings that the table needs for a topic of this kind, besides its own."""

    def refuse_unsaid(self, said: frozenset[str]) -> None:
        """Raise `StoreDamagedError` where files show topics of this kind that the table lacks."""

    # --- reading --------------------------------------------------------------------------------

    @abstractmethod
    def queue(self, key: QueueKey) -> Any:
        """Return a queue that exists, else None."""

    @abstractmethod
    def queue_keys(self) -> Iterable[QueueKey]:
        """Return every queue."""

    @abstractmethod
    def pages(self, plain: Any, question: tuple[str, int, str | None]) -> Any:
        """Return the reader of pages of a queue, as `plain`, a `Pages`, is for a plain topic."""

    def message_at(self, physical_offset: int) -> StoredMessage | None:
        """Return a message that is in no log on the disk."""
        return None

    # --- putting --------------------------------------------------------------------------------

    def refusal(self, topic: str) -> str | None:
        """Return why this store does not put to a topic; None where it does."""
        return None

    def is_by_itself(self, message: Message) -> bool:
        """Whether a message is put as to a plain topic, with a counter of this kind."""
        return False

    def numbering(
        self, counter: QueueCounter, record: Record, *, checks: bool
    ) -> Callable[[], tuple[Record, Sequence[QueueCounter]]] | None:
        """Return a function that completes a record under the append lock; None for none.

        `checks`: also refuse what a message of a program may not ask for here.
        """
        return None

    def joined(self, records: Sequence[Record]) -> Record | None:
        """Return the one record that the messages of a batch become; None: each has its own."""
        return None

    def client_record(
        self, batch: bytes, block: bytes, host: bytes, **fields: Any
    ) -> Record | None:
        """Return a client's batch as one record, its properties `block`; None as `joined`."""
        return None

    # --- on the disk: dispatch, recovery, flush, retention --------------------------------------

    def load(self, log: Any, *, after_crash: bool) -> Sequence[FileFinding[Path]]:
        """Take in the queues that have files; return what is wrong with these."""
        return ()

    def recover(
        self, topics: frozenset[str], start: int, end: int, *, clean: bool,
        known: Mapping[QueueKey, QueueEnds], dispatch: Callable[[int, int], object],
    ) -> None:  # fmt: skip
        """Make the queues of `topics` agree with the log, recovered from `start` to its `end`.

        `known` says where queues began and ended. `dispatch` enters a range of the log; nothing is
        entered before this call.
        """

    def enter(self, columns: RecordColumns, number: int) -> None:
        """Enter a record of such a topic into its queue; on the dispatching thread."""
        raise NotImplementedError

    def begin(self, topic: str) -> None:
        """Make what a topic has before its first message."""

    def files(self) -> Sequence[Any]:
        """Return the queues to be flushed, cleaned and dropped, as `ConsumeQueue` is."""
        return ()

    # --- observation -----------------------------------------------------------------------------

    def runtime_info(self, topic_count: int) -> dict[str, int]:
        """Return this kind's part of the runtime information."""
        return {}


class TopicKinds(dict[str, TopicKind]):
    """The kind of each topic that has one; `known` are the kinds there are in this store.

    A store that `learns` marks a topic as one of batches when it meets a record with a batch.
    """

    def __init__(self, known: Iterable[TopicKind] = (), *, learns: bool = False) -> None:
        super().__init__()
        self.learns = learns
        self.known: dict[str, TopicKind] = {}
        for kind in known:
            enter_by_name(self.known, kind, TopicKind, "kinds")

    def of(self, name: str) -> frozenset[str]:
        """Return the topics of one kind."""
        return frozenset(topic for topic, kind in self.copy().items() if kind.name == name)

    def is_in_memory(self, topic: object) -> bool:
        """Whether messages of a topic are in this process alone."""
        kind = self.get(topic) if isinstance(topic, str) else None
        return kind is not None and not kind.is_on_disk

    def on_disk(self) -> list[TopicKind]:
        """Return the kinds with queues of their own on the disk."""
        return [kind for kind in self.known.values() if kind.is_on_disk]

    def learn(self, topic: str) -> TopicKind | None:
        """Return the kind of a topic for which a record with a batch was met; None: plain."""
        kind = self.get(topic)
        if kind is None and self.learns and not is_reserved(topic):
            _log.info("topic.is_batch", topic=topic, reason="a record of it holds a batch")
            kind = self[topic] = self.known["batch"]
        return kind if kind is not None and kind.is_on_disk else None

    def read(self, layout: StoreLayout) -> TopicKinds:
        """Read the table.

        Raises `StoreError` where a topic is of a kind that is not known; `StoreDamagedError` or
        `FormatError` where the table has lost topics of a kind, or has some and cannot be read.
        """
        path = layout.config / TOPICS_FILE
        try:
            said = read_with_backup(path, partial(self._said, layout)) or {}
        except FormatError:
            for kind in self.known.values():
                kind.refuse_unsaid(frozenset())  # the queues tell better what is lost
            raise
        found: dict[str, TopicKind] = {}
        for topic, one in said.items():
            for kind in self.known.values():
                if kind.claims(topic, one):
                    found[topic] = kind
            if topic not in found:
                refuse_unknown(topic, one.get("attributes"))
        for kind in self.known.values():
            kind.refuse_unsaid(frozenset(topic for topic, one in found.items() if one is kind))
        for topic in self.keys() - found.keys():
            del self[topic]
        self.update(found)
        return self

    def _said(self, layout: StoreLayout, content: bytes) -> dict[str, Any]:
        """Return a table's settings of each topic; none from a table that names no kind."""
        marks = {QUEUE_TYPE, *(kind.mark for kind in self.known.values())}
        is_needed = None in marks or layout.batch_consume_queue.is_dir()
        if not is_needed and not any(f'"{mark}"'.encode() in content for mark in marks):
            return {}
        topics: dict[str, Any] = decoded_topics(content).get(TOPIC_TABLE, {})
        return topics
