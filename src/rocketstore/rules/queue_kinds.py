"""Which topics are batch topics, and where ``topics.json`` and the queues there are disagree.

The queues of a batch topic (``queue.type`` of the table) are in ``batchconsumequeue``, those of any
other in ``consumequeue``. A broker of 4.x, which knows no kinds, makes plain queues of every topic
when it opens a store, so these can be removed. Batch queues are made for batch topics only: a table
that does not name such a topic has lost the entry, and only the table can be repaired.

How derived: ConsumeQueueStore.queueTypeShouldBe of 5.3.1, which starts with neither.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from rocketstore.errors import StoreError
from rocketstore.format.file_name import (
    BATCH_CONSUME_QUEUE_DIRECTORY,
    CONFIG_DIRECTORY,
    CONSUME_QUEUE_DIRECTORY,
)
from rocketstore.format.metadata_json import BATCH_QUEUES, QUEUE_TYPE, TOPICS_FILE
from rocketstore.rules.findings import Finding, Severity, finding
from rocketstore.rules.table_files import Content, table_of
from rocketstore.rules.topics import SELF_TEST_TOPIC, is_reserved

if TYPE_CHECKING:
    from rocketstore.units import QueueKey

PLAIN_QUEUES: Final = "SimpleCQ"
"""The type that a broker of 5.x gives to ordinary topics."""

_TABLE: Final = f"{CONFIG_DIRECTORY}/{TOPICS_FILE}"


class QueueKinds(NamedTuple):
    """The batch topics of a store, by its table or its queues, and where these disagree.

    `misplaced` are the directories, below the store, of queues that batch topics do not have;
    `unsaid` are batch topics that the table does not mark. `known` are topics that a broker's table
    names, or that have queues; None without such a table.
    """

    batch_topics: frozenset[str]
    misplaced: list[str]
    unsaid: list[str]
    findings: list[Finding]
    known: frozenset[str] | None = None

    def judged(self, found: Finding) -> Finding:
        """Return a finding of a queue, as a warning where all is missing of a deleted topic's."""
        topic = found.topic or ""
        is_there = self.known is None or topic in self.known or is_reserved(topic)
        if is_there or found.kind != "queue-missing":
            return found
        action = f"its topic is not in {_TABLE}, and has no queue: a broker deleted it. Nothing to "
        action += "do where it is to stay deleted; repair makes its queues again"
        return msgspec.structs.replace(found, severity=Severity.WARNING, action=action)


def queue_kinds(
    content_of: Callable[[str], Content],
    queues: Collection[QueueKey],
    batch_queues: Collection[QueueKey],
) -> QueueKinds:
    """Compare the table of topics, or its backup, with the queues that have a directory.

    Raises `StoreError` where it names a kind that is not known.
    """
    table = table_of(content_of, TOPICS_FILE)
    for topic, said in ({} if table is None else table.topic_config_table).items():
        refuse_unknown(topic, said.attributes)
    batches = frozenset() if table is None else table.batch_topics()
    kinds = compare_kinds(batches, queues, batch_queues)
    if table is None or SELF_TEST_TOPIC not in table.topic_config_table:
        return kinds  # what a program put has no row in a table that no broker wrote
    there = (key.topic for key in (*queues, *batch_queues))
    return kinds._replace(known=frozenset((*table.topic_config_table, *there)))


def refuse_unknown(topic: str, attributes: Mapping[str, str] | None) -> None:
    """Raise where a table gives a topic a kind of queue that is not known."""
    kind = (attributes or {}).get(QUEUE_TYPE, PLAIN_QUEUES)
    if kind not in (PLAIN_QUEUES, BATCH_QUEUES):
        raise StoreError(
            f"{_TABLE}: topic {topic} has queues of the kind {kind}, which is not known",
            hint="open the store with the program that made them",
        )


def compare_kinds(
    said: frozenset[str], queues: Iterable[QueueKey], batch_queues: Iterable[QueueKey]
) -> QueueKinds:
    """Compare the batch topics of the table with the queues that have a directory."""
    unsaid = sorted({key.topic for key in batch_queues} - said)
    both = sorted({key.topic for key in queues} & said)
    misplaced = [f"{CONSUME_QUEUE_DIRECTORY}/{topic}" for topic in both]
    findings = []
    for topic in unsaid:
        place = f"{BATCH_CONSUME_QUEUE_DIRECTORY}/{topic}"
        reason = f"{topic} is no batch topic there, but has queues in {place}"
        expected = "queue.type: BatchCQ"
        findings.append(finding("topic-kind", _TABLE, reason, topic=topic, expected=expected))
    findings += [
        finding("queue-kind", name, f"{topic} is a batch topic in {_TABLE}", topic=topic)
        for name, topic in zip(misplaced, both, strict=True)
    ]
    return QueueKinds(said.union(unsaid), misplaced, unsaid, findings)
