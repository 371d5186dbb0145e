"""``config/subscriptionGroup.json``: the settings of each consumer group.

Law: a change is on the disk, with a newer `DataVersion`, before the call returns. Fields of the
file that this version does not know stay there.

How derived: SubscriptionGroupManager of 4.9 (spec F13), which loads it when the broker starts.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rocketstore.format.metadata_json import (
    SUBSCRIPTION_GROUPS_FILE,
    DataVersion,
    MemberTexts,
    SubscriptionGroup,
    SubscriptionGroupTable,
    decode_whole,
    dumps,
    table_of,
)
from rocketstore.locks import Lock
from rocketstore.storage.files.disk import Disk, system_errors
from rocketstore.storage.files.whole_file import KnownTable
from rocketstore.units import system_clock_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocketstore.storage.layout import StoreLayout

_GROUPS: Final = "subscriptionGroupTable"
_decoded: Final = partial(decode_whole, table=SubscriptionGroupTable)


class SubscriptionGroups:
    """The groups of an open store; the file is read when the first one is asked for."""

    def __init__(
        self, layout: StoreLayout, *, clock: Callable[[], int] = system_clock_ms,
        disk: Disk | None = None,
    ) -> None:  # fmt: skip
        path = layout.config / SUBSCRIPTION_GROUPS_FILE
        self._clock = clock
        self._known = KnownTable(path, _decoded, disk or Disk())
        self._texts = MemberTexts()
        self._changing = Lock()

    @cached_property
    def table(self) -> SubscriptionGroupTable:
        """What the file says; of one that is not there, nothing."""
        return table_of(self._content, SubscriptionGroupTable)

    @cached_property
    def _content(self) -> dict[str, Any]:
        return self._known.read() or {_GROUPS: {}}

    def find(self, name: str) -> SubscriptionGroup | None:
        """Return a group's settings, None if the table does not have the group.

        Raises `FormatError` where the file and its backup are broken.
        """
        return self.table.subscription_group_table.get(name)

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
        with self._changing:
            table, new = self.table, {one.group_name: one for one in groups}
            counter = (table.data_version or DataVersion()).counter + 1
            changed = SubscriptionGroupTable(
                data_version=DataVersion(counter=counter, timestamp=self._clock()),
                subscription_group_table=table.subscription_group_table | new,
            )
            known = self._content[_GROUPS] | msgspec.to_builtins(new)
            content = {
                **(self._known.read() or {}),
                "dataVersion": msgspec.to_builtins(changed.data_version), _GROUPS: known,
            }  # fmt: skip
            text = dumps({**content, _GROUPS: self._texts.of(known)})
            self._known.write(text.encode(), content)
            self.table, self._content = changed, content
