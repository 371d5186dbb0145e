"""``config/subscriptionGroup.json``: what was settled for each consumer group.

How derived: SubscriptionGroupManager of 4.9 (spec F13), which loads it when the broker starts.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING

from rocketstore.format.metadata_json import (
    SUBSCRIPTION_GROUPS_FILE,
    SubscriptionGroup,
    SubscriptionGroupTable,
    decode_table,
)
from rocketstore.storage.files.whole_file import read_with_backup

if TYPE_CHECKING:
    from rocketstore.storage.layout import StoreLayout


class SubscriptionGroups:
    """The groups of an open store; the file is read when the first one is asked for."""

    def __init__(self, layout: StoreLayout) -> None:
        self._path = layout.config / SUBSCRIPTION_GROUPS_FILE

    @cached_property
    def _groups(self) -> dict[str, SubscriptionGroup]:
        table = read_with_backup(self._path, partial(decode_table, table=SubscriptionGroupTable))
        return {} if table is None else table.subscription_group_table

    def get(self, name: str) -> SubscriptionGroup:
        """Return a group's settings, those of a new one where the file says nothing of it.

        Raises
        ------
        FormatError
            The file and its backup are broken.
        """
        return self._groups.get(name) or SubscriptionGroup(group_name=name)
