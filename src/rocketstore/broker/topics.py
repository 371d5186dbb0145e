"""Topics and groups of a broker: those of its start, and those that a request brings into being.

Law: what is made is on the disk before the request goes on, and name servers are told before it is
answered: a client that asks for the route next has it.

How derived: TopicConfigManager, SubscriptionGroupManager and TopicValidator of 4.9.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from rocketstore.broker.codes import BrokerAnswer
from rocketstore.broker.refused import SEE, Refused
from rocketstore.format.metadata_json import DataVersion, SubscriptionGroup, TopicConfig
from rocketstore.format.queue_entry import DELAY_TOPIC
from rocketstore.rules.limits import MOST_QUEUES
from rocketstore.rules.topics import (
    BENCHMARK_TOPIC,
    DISCARDED_TOPIC,
    HALF_TOPIC,
    OFFSET_MOVED_TOPIC,
    RETRY_PREFIX,
    SELF_TEST_TOPIC,
    SYSTEM_TOPICS,
    TEMPLATE_TOPIC,
    is_system,
    name_fault,
)
from rocketstore.tables.topic_settings import PERM_INHERIT, PERM_READ, PERM_WRITE, perm_text
from rocketstore.units import awake_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from rocketstore.broker.loop import Loop
    from rocketstore.broker.settings import BrokerSettings
    from rocketstore.format.metadata_json import SubscriptionGroupTable
    from rocketstore.tables.groups import SubscriptionGroups
    from rocketstore.tables.topic_settings import TopicSettings

REPLY_SUFFIX: Final = "_REPLY_TOPIC"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"  # of groups that are made where no client's may be
DELAY_QUEUES: Final = 18

READ_WRITE: Final = PERM_READ | PERM_WRITE
UNIT: Final = 1
UNIT_SUB: Final = 2
"""Bits of `TopicConfig.topic_sys_flag` (TopicSysFlag)."""

_OF_MASTER: Final = (
    "Can't modify topic or subscription group from slave broker, please execute it from master "
    "broker."
)

FIRST_GROUPS: Final = {name: SubscriptionGroup(group_name=name) for name in (
    "TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER",
)}  # fmt: skip
"""Groups of a broker that has no table yet (SubscriptionGroupManager.init)."""


class Unmade(Exception):  # noqa: N818 - it becomes a wait
    """Topics and groups that a request needs and that are not there yet: its turn makes them."""


def topic_text(topic: TopicConfig) -> str:
    """Return a topic as 4.9's refusals name it (TopicConfig.toString)."""
    return (
        f"TopicConfig [topicName={topic.topic_name}, readQueueNums={topic.read_queue_nums}, "
        f"writeQueueNums={topic.write_queue_nums}, perm={perm_text(topic.perm)}, "
        f"topicFilterType={topic.topic_filter_type}, topicSysFlag={topic.topic_sys_flag}, "
        f"order={str(topic.order).lower()}]"
    )


def not_there(topic: str, blank: str = "") -> str:
    """Return the remark of code 17; that of a pull has a blank more."""
    return f"topic[{topic}] not exist, apply first please!{blank}{SEE}"


def first_topics(settings: BrokerSettings) -> list[TopicConfig]:
    """Return the topics that a broker has from its start (TopicConfigManager)."""
    shared = READ_WRITE | PERM_INHERIT
    cluster, broker = settings.broker_cluster_name, settings.broker_name
    # 4.9 makes those of transactions when it first checks, or discards, one.
    single = (
        SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC, HALF_TOPIC, DISCARDED_TOPIC, cluster + REPLY_SUFFIX,
    )  # fmt: skip
    rows: list[tuple[str, int, int]] = [
        *((name, 1, READ_WRITE) for name in single),
        (BENCHMARK_TOPIC, 1024, READ_WRITE),
        (cluster, 16, shared if settings.cluster_topic_enable else PERM_INHERIT),
        (broker, 1, shared if settings.broker_topic_enable else PERM_INHERIT),
        (DELAY_TOPIC, DELAY_QUEUES, READ_WRITE),
    ]
    if settings.auto_create_topic_enable:
        rows.append((TEMPLATE_TOPIC, settings.default_topic_queue_nums, shared))
    if settings.trace_topic_enable:
        rows.append((settings.msg_trace_topic_name, 1, READ_WRITE))
    return [
        TopicConfig(topic_name=name, read_queue_nums=count, write_queue_nums=count, perm=perm)
        for name, count, perm in rows
    ]


def _made(topic: str, queue_count: int, is_unit: bool) -> TopicConfig:  # noqa: FBT001 - private
    """Return a topic as a client makes it."""
    flag = (UNIT_SUB if topic.startswith(RETRY_PREFIX) else UNIT) if is_unit else 0
    queue_count = min(queue_count, MOST_QUEUES)
    return TopicConfig(
        topic_name=topic, read_queue_nums=queue_count, write_queue_nums=queue_count,
        perm=READ_WRITE, topic_sys_flag=flag,
    )  # fmt: skip


class Topics:
    """The topics and groups of one broker: `get` returns a topic or None.

    `changed` is called after a change of topics. While those go on who waited for what was made,
    `is_made` is set, and `trouble` says why it could not be; `made_ms` is when they were done.
    """

    def __init__(
        self, settings: BrokerSettings, table: TopicSettings, groups: SubscriptionGroups,
        changed: Callable[[], object], loop: Loop, monotonic: Callable[[], int] = awake_ms,
    ) -> None:  # fmt: skip
        self._settings = settings
        self.table = table
        self.get = table.get
        self.groups = groups
        self._changed, self._loop, self._monotonic = changed, loop, monotonic
        self._waiting: list[tuple[Unmade, Callable[[], object]]] = []
        self.made_ms, self.is_made = 0, False
        self.trouble: Exception | None = None

    def fault(self, name: str, *counts: int, what: str = "topic") -> str | None:
        """Return why no administrator makes a topic, or group, of so many queues here."""
        if self._settings.broker_id:
            return _OF_MASTER
        wrong = [count for count in counts if not 0 <= count <= MOST_QUEUES]
        count_fault = f"{wrong[0]} queues are not 0 to {MOST_QUEUES}" if wrong else None
        return name_fault(name, what) or count_fault

    def is_reserved(self, topic: str) -> bool:
        """Whether no client may make a topic of this name: the broker's own are reserved, too."""
        return is_system(topic) or topic in self.reserved

    @property
    def reserved(self) -> set[str]:
        """The names of topics that no client may make (TopicValidator.getSystemTopicSet)."""
        return {*SYSTEM_TOPICS, *(topic.topic_name for topic in first_topics(self._settings))}

    def settle(self, *wanted: TopicConfig | SubscriptionGroup) -> None:
        """Make or change topics and groups, by a write of each table."""
        if groups := [one for one in wanted if isinstance(one, SubscriptionGroup)]:
            self.groups.settle(*groups)
        if topics := [one for one in wanted if isinstance(one, TopicConfig)]:
            self.table.settle(*topics)
            self._changed()
        self.made_ms = self._monotonic()

    def wait(self, unmade: Unmade, go_on: Callable[[], object]) -> None:
        """Go on when something was made: after this turn, with all else that it brings."""
        self._waiting.append((unmade, go_on))
        if len(self._waiting) == 1:
            self._loop.post(self.make)

    def make(self) -> None:
        """Make what is waited for; of two of one name, the first."""
        waiting, self._waiting = self._waiting, []
        wanted = [one for unmade, _ in reversed(waiting) for one in unmade.args]
        try:
            if wanted:
                self.settle(*wanted)
        except Exception as error:  # noqa: BLE001 - each that waits is told
            self.trouble = error
        self.is_made = True
        for _, go_on in waiting:
            go_on()
        self.is_made, self.trouble = False, None
        if wanted:
            self.made_ms = self._monotonic()

    def for_send(
        self, topic: str, template: str | None, queue_count: int, *, is_unit: bool
    ) -> TopicConfig | None:
        """Have the topic of a send made from the template that it names, if that is allowed.

        Source: TopicConfigManager.createTopicInSendMessageMethod.
        """
        is_closed = template == TEMPLATE_TOPIC and not self._settings.auto_create_topic_enable
        model = None if is_closed else self.get(template or "")
        if model is not None and model.perm & PERM_INHERIT:
            count = max(min(queue_count, model.write_queue_nums), 0)
            made = msgspec.structs.replace(
                _made(topic, count, is_unit), perm=model.perm & ~PERM_INHERIT,
                topic_filter_type=model.topic_filter_type,
            )  # fmt: skip
            raise self.trouble or Unmade(made)
        if topic.startswith(RETRY_PREFIX):
            return self.for_group(topic, 1, is_unit=is_unit)
        return None

    def for_group(self, topic: str, queue_count: int = 1, *, is_unit: bool = False) -> TopicConfig:
        """Return a topic of second tries or dead letters; `Unmade` where it is missing.

        Source: TopicConfigManager.createTopicInSendMessageBackMethod.
        """
        known = self.get(topic)
        if known is None:
            raise self.trouble or Unmade(_made(topic, queue_count, is_unit))
        return known

    # --- groups ---------------------------------------------------------------------------------

    def group(self, name: str, remark: str) -> SubscriptionGroup:
        """Return a consumer group; `Unmade` where it may be made, else refused with a remark."""
        known = self.known_group(name)
        if known is not None:
            return known
        new = self._new_groups([name])
        if new:
            raise self.trouble or Unmade(*new)
        raise Refused(BrokerAnswer.SUBSCRIPTION_GROUP_NOT_EXIST, f"{remark} {SEE}")

    def unmade(self, groups: Mapping[str, bool]) -> Unmade:
        """Return what is not there of a heartbeat's groups and their topics of second tries.

        `groups` says whether each is a unit. One that may not be made is left out.
        """
        new = self._new_groups(groups)
        retries = [
            _made(RETRY_PREFIX + one.group_name, one.retry_queue_nums, groups[one.group_name])
            for one in [*filter(None, map(self.known_group, groups)), *new]
        ]
        retries = [topic for topic in retries if self.get(topic.topic_name) is None]
        return Unmade(*new, *retries)

    def known_group(self, name: str) -> SubscriptionGroup | None:
        """Return a consumer group, None where there is none yet."""
        return self.groups.find(name) or FIRST_GROUPS.get(name)

    def _new_groups(self, names: Iterable[str]) -> list[SubscriptionGroup]:
        is_open = self._settings.auto_create_subscription_group
        allowed = (name for name in names if is_open or name.startswith(SYSTEM_GROUP_PREFIX))
        new = [name for name in allowed if self.known_group(name) is None]
        return [SubscriptionGroup(group_name=one) for one in new if not name_fault(one, "group")]

    @property
    def group_table(self) -> SubscriptionGroupTable:
        """Every consumer group by its name, and of which version they are."""
        known = self.groups.table
        version = known.data_version or DataVersion(timestamp=self.table.made_ms)
        groups = FIRST_GROUPS | known.subscription_group_table
        return msgspec.structs.replace(known, data_version=version, subscription_group_table=groups)
