"""Named values, in namespaces: the configuration of order topics above all.

Law: this file knows no file; who wants the values kept is told of each change before it is
answered.
How derived: KVConfigManager of 4.9.7; the text is that of its ``kvConfig.json``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocketstore.format.metadata_json import dumps

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocketstore.nameserver.bodies import SavedValues
    from rocketstore.nameserver.headers import KeyHeader, KeyValueHeader

ORDER_TOPICS: Final = "ORDER_TOPIC_CONFIG"
"""The namespace whose values say how many queues of which broker an order topic has."""


class KeyValues:
    """Values by namespace and key; `keep` is given the text of all of them before each change."""

    def __init__(
        self, saved: SavedValues | None = None, keep: Callable[[str], None] | None = None
    ) -> None:
        self._table = {} if saved is None else saved.config_table
        self._keep = keep

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """Return the values of a namespace, None if there is none of that name."""
        return self._table.get(namespace)

    def put(self, header: KeyValueHeader) -> None:
        """Set a value."""
        values = self._table.get(header.namespace, {})
        self._change(header.namespace, {**values, header.key: header.value})

    def delete(self, header: KeyHeader) -> None:
        """Delete a value, if there is one."""
        values = self._table.get(header.namespace, {})
        if header.key in values:
            left = {key: value for key, value in values.items() if key != header.key}
            self._change(header.namespace, left)

    def _change(self, namespace: str, values: dict[str, str]) -> None:
        """Change a namespace as a whole, or not at all where that cannot be kept."""
        table = {**self._table, namespace: values}
        if self._keep is not None:
            self._keep(dumps({"configTable": table}))
        self._table = table
