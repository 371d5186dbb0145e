"""Pulls, and the table of those that found nothing and are held until something comes.

Law: a pull is held at most once, and leaves by being answered or with its connection. One that only
asks for other tags than those that come is woken by the sweep, as in 4.9.

How derived: PullMessageRequestHeader, PullRequestHoldService and ManyPullRequest of 4.9 (spec B13).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import msgspec

from rocketstore.remoting.fields import Header, Int32, Int64
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rocketstore.remoting.requests import Call, Peer
    from rocketstore.storage.dispatch.dispatcher import Arrival

LOOK_MS: Final = 5000
"""How often each is looked at; 4.9 looks at all of them together (PullRequestHoldService.run)."""

_LOW_BITS: Final = 0xFFFFFFFF


class PullHeader(Header):
    """Which messages a consumer wants next of a queue."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64 | None = None
    suspend_timeout_millis: Int64 = 0
    subscription: str | None = None
    sub_version: Int64 = 0
    expression_type: str | None = None


class HeldPull(msgspec.Struct, eq=False):
    """One pull, looked at again at `look_ms`; `tags` are the hashes that it wants, None all."""

    header: PullHeader
    call: Call
    until_ms: int
    look_ms: int
    tags: Sequence[int] | None

    def wants(self, tags_code: int) -> bool:
        """Whether a message with these tags may be for it; the record decides."""
        return self.tags is None or tags_code & _LOW_BITS in self.tags


class HeldPulls:
    """All held pulls of a broker; each is looked at once in `interval_ms`."""

    def __init__(self, interval_ms: int = LOOK_MS) -> None:
        self.interval_ms = interval_ms
        self._by_queue: dict[QueueKey, dict[HeldPull, None]] = {}
        self._by_peer: dict[Peer, dict[HeldPull, None]] = {}
        self._by_look: OrderedDict[HeldPull, None] = OrderedDict()

    def __contains__(self, queue: object) -> bool:
        """Return whether a pull of a queue is held; from any thread."""
        return queue in self._by_queue

    def __len__(self) -> int:
        return len(self._by_look)

    def add(self, pull: HeldPull) -> None:
        """Hold a pull."""
        queue = QueueKey(pull.header.topic, pull.header.queue_id)
        self._by_queue.setdefault(queue, {})[pull] = None
        self._by_peer.setdefault(pull.call.peer, {})[pull] = None
        self._by_look[pull] = None

    def remove(self, pull: HeldPull) -> None:
        """Hold a pull no longer."""
        _remove(self._by_queue, QueueKey(pull.header.topic, pull.header.queue_id), pull)
        _remove(self._by_peer, pull.call.peer, pull)
        self._by_look.pop(pull, None)

    def disconnected(self, peer: Peer) -> None:
        """Forget the pulls of a connection."""
        self._take(self._by_peer.get(peer, ()))

    def woken_by(self, arrival: Arrival) -> list[HeldPull]:
        """Take out the pulls that a message may be for."""
        held = self._by_queue.get(QueueKey(arrival.topic, arrival.queue_id), ())
        end, code = arrival.next_offset, arrival.tags_code
        return self._take(one for one in held if end > one.header.queue_offset and one.wants(code))

    def due(self, now_ms: int, max_offset: Callable[[str, int], int]) -> list[HeldPull]:
        """Look at those whose turn it is: take out who waited enough, or whose queue got on."""
        due = []
        while (pull := next(iter(self._by_look), None)) and pull.look_ms <= now_ms:
            pull.look_ms += self.interval_ms
            self._by_look.move_to_end(pull)
            end = max_offset(pull.header.topic, pull.header.queue_id)
            if end > pull.header.queue_offset or now_ms >= pull.until_ms:
                due.append(pull)
                self.remove(pull)
        return due

    def take_all(self) -> list[HeldPull]:
        """Take out all, as the broker ends."""
        return self._take(self._by_look)

    def _take(self, pulls: Iterable[HeldPull]) -> list[HeldPull]:
        taken = list(pulls)
        for pull in taken:
            self.remove(pull)
        return taken


def _remove(table: dict, key: object, pull: HeldPull) -> None:  # type: ignore[type-arg]
    if (held := table.get(key)) is not None:
        held.pop(pull, None)
        if not held:
            del table[key]
