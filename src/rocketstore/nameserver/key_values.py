"""Named values, in namespaces: the configuration of order topics above all.

Law: this file knows no file; who wants the values kept is told of each change before it is
answered.
How derived: KVConfigManager of 4.9.7; the text is that of its ``kvConfig.json``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocketstore.format.metadata_json import dumps
from rocketstore.nameserver.bodies import Body, decode_body

if TYPE_CHECKING:
    from collections.abc import Callable

ORDER_TOPICS: Final = "ORDER_TOPIC_CONFIG"
"""The namespace whose values say how many queues of which broker an order topic has."""


Values = dict[str, dict[str, str]]


class _Saved(Body):
    config_table: Values


def saved_values(text: bytes) -> Values:
    """Return the values of a ``kvConfig.json``; `FormatError` where it is none."""
    return decode_body(text, _Saved).config_table


class KeyValues:
    """Values by namespace and key; `keep` is given the text of all of them before each change."""

    def __init__(
        self, saved: Values | None = None, keep: Callable[[str], None] | None = None
    ) -> None:
        self._table = saved or {}
        self._keep = keep

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """Return the values of a namespace, None if there is none of that name."""
        return self._table.get(namespace)

    def get(self, namespace: str, key: str) -> str | None:
        """Return a value."""
        return self._table.get(namespace, {}).get(key)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value."""
        self._change(namespace, {**self._table.get(namespace, {}), key: value})

    def delete(self, namespace: str, key: str) -> None:
        """Delete a value, if there is one."""
        if self.get(namespace, key) is not None:
            values = self._table[namespace]
            self._change(namespace, {name: values[name] for name in values if name != key})

    def _change(self, namespace: str, values: dict[str, str]) -> None:
        """Change a namespace as a whole, or not at all where that cannot be kept."""
        table = {**self._table, namespace: values}
        if self._keep is not None:
            self._keep(dumps({"configTable": table}))
        self._table = table
