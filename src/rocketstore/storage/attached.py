"""Services that work on an open store, each in a package of its own.

A service is made with the store, which it gets as its only argument, and finds there what it needs:
`store.clock`, `store.disk`, `store.config`, and services made before it by `store.attached[name]`.
It uses the store's public calls only. Page: docs/contributing.md, "Add a service".

Law: services start after the store's own threads, in the order in which they were made, and stop
before them, the other way round; they finish after the last put. A store without threads starts
none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from rocketstore.errors import RocketStoreError
    from rocketstore.storage.metric import Histogram, Metric


class Service:
    """The base of services, which override what they need; others find a service by its `name`."""

    name: str

    def start(self) -> None:
        """Begin to work."""

    def stop(self) -> None:
        """End; after an interrupt it is called again."""

    def finish(self) -> None:
        """End what all messages are for, once none is put any more; may be called again too."""

    def forget(self, error: RocketStoreError) -> None:
        """Drop what would act in a forked child; waiting callers there get `error`."""

    def runtime_info(self) -> Mapping[str, object]:
        """Return its part of the store's runtime information."""
        return {}

    def metrics(self) -> Iterable[Metric | Histogram]:
        """Return its numbers for Prometheus, of this moment."""
        return ()


Maker: TypeAlias = Callable[[Any], "Service | None"]
"""Makes a service of a store, or None by the settings; often the class itself."""
