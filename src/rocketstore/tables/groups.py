"""``config/subscriptionGroup.json``: the settings of each consumer group.

Law: a change is on the disk, with a newer `DataVersion`, before the call returns. Fields of the
file that this version does not know stay there.

How derived: SubscriptionGroupManager of 4.9 (spec F13), which loads it when the broker starts, and
LmqSubscriptionGroupManager.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final

import msgspec

from rocketstore.format.metadata_json import (
    SUBSCRIPTION_GROUPS_FILE,
    DataVersion,
    SubscriptionGroup,
    SubscriptionGroupTable,
    decode_whole,
    table_of,
)
from rocketstore.format.queue_entry import LMQ_PREFIX
from rocketstore.locks import Lock
from rocketstore.storage.files.disk import Disk, system_errors
from rocketstore.storage.queues.topic_file import SettingsFile
from rocketstore.units import system_clock_ms

if TYPE_CHECKING:
    from rocketstore.storage.layout import StoreLayout

_GROUPS: Final = "subscriptionGroupTable"
_decoded: Final = partial(decode_whole, table=SubscriptionGroupTable)


class SubscriptionGroups:
    """The groups of an open store; the file is read when the first one is asked for.

    Where it `has_light` queues, each group that is named like one is there, and in no table.
    """

    def __init__(
        self, layout: StoreLayout, *, clock: Callable[[], int] = system_clock_ms,
        disk: Disk | None = None, has_light: bool = False,
    ) -> None:  # fmt: skip
        self._light = (LMQ_PREFIX,) if has_light else ()  # what their names begin with
        path = layout.config / SUBSCRIPTION_GROUPS_FILE
        self._file = SettingsFile(path, _GROUPS, _decoded, clock=clock, disk=disk or Disk())
        self._changing = Lock()

    @cached_property
    def table(self) -> SubscriptionGroupTable:
        """What the file says; of one that is not there, nothing."""
        return table_of(self._file.read() or {_GROUPS: {}}, SubscriptionGroupTable)

    def find(self, name: str) -> SubscriptionGroup | None:
        """Return a group's settings, None if there is none of that name.

        Raises `FormatError` where the file and its backup are broken.
        """
        known = self.table.subscription_group_table.get(name)
        return SubscriptionGroup(group_name=name) if name.startswith(self._light) else known

    def get(self, name: str) -> SubscriptionGroup:
        """Return a group's settings, those of a new group where the file does not have it.

        Raises `FormatError` as `find`.
        """
        return self.find(name) or SubscriptionGroup(group_name=name)

    @system_errors("cannot save the settings of consumer groups")
    def settle(self, *groups: SubscriptionGroup) -> None:
        """Make groups, or change them, by one write.

        Raises `StoreError` where the file cannot be written; nothing changed then.
        """
        made = {one.group_name: one for one in groups}
        new = {name: made[name] for name in made if not name.startswith(self._light)}
        with self._changing:
            known = self.table
            version = self._file.settle(new)["dataVersion"]
            self.table = SubscriptionGroupTable(
                msgspec.convert(version, DataVersion), known.subscription_group_table | new
            )
