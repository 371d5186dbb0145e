"""Name servers are told of this broker: at its start, now and then, and when a topic changes.

Law: what waits for a topic to be known everywhere goes on when every name server has answered, or
was given up, or after two seconds. One that was given up is not waited for until it answers.

How derived: BrokerController.registerBrokerAll and BrokerOuterAPI of 4.9.
"""

from __future__ import annotations

import asyncio
import contextlib
from math import inf
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from rocketstore.errors import RocketStoreError
from rocketstore.events import get_logger
from rocketstore.format.metadata_json import TopicTable
from rocketstore.format.registration import RegisterBrokerBody, pack_registration
from rocketstore.remoting.codes import RequestCode, ResponseCode
from rocketstore.remoting.command import Command
from rocketstore.remoting.frame import LONGEST_FRAME
from rocketstore.units import KiB

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rocketstore.broker.settings import BrokerSettings
    from rocketstore.remoting.client import RemotingClient
    from rocketstore.tables.topic_settings import TopicSettings

LONGEST_WAIT_S: Final = 2.0
"""How long the start of a broker, or a client, waits for name servers at most: clients wait three
seconds. The start of 4.9 waits as for any request, its clients for a connection only."""

UNREGISTER_MS: Final = 1000
"""How long the end of a broker waits for a name server."""

LONGEST_PLAIN: Final = LONGEST_FRAME - 64 * KiB
"""The longest body that is not packed: a frame holds it and a header. That is some 80,000 topics;
beyond them 4.9 registers only with ``compressedRegister=true``."""

_log: Final = get_logger(__name__)


class Registration:
    """Keeps name servers informed; `wanted` counts of what: the start, and each change."""

    def __init__(
        self, settings: BrokerSettings, topics: TopicSettings, client: RemotingClient,
        addresses: Sequence[str],
    ) -> None:  # fmt: skip
        self._settings = settings
        self._topics = topics
        self._client = client
        self._unreachable: set[str] = set()
        self._waiting: list[tuple[int, Callable[[], object]]] = []
        self._changed = asyncio.Event()
        self._told = dict.fromkeys(addresses, 0)
        self._encoded: tuple[TopicTable | None, bytes, bool] = None, b"", False
        self.wanted = 1

    def note_change(self) -> None:
        """Tell of topics that were made or changed."""
        self.wanted += 1
        self._changed.set()
        self._changed = asyncio.Event()

    def then(self, go_on: Callable[[], object], *, is_new: bool = True) -> None:
        """Go on once the name servers know of all changes so far; at once if none `is_new`."""
        if not is_new or self._known >= self.wanted:
            go_on()
        else:
            self._waiting.append((self.wanted, go_on))
            asyncio.get_running_loop().call_later(LONGEST_WAIT_S, self.release, self.wanted)

    @property
    def _known(self) -> float:
        """The version that all name servers know, except those that were given up."""
        told = (told for one, told in self._told.items() if one not in self._unreachable)
        return min(told, default=inf)

    async def run(self) -> None:
        """Register, again at each change and after each period, until it is cancelled."""
        await asyncio.gather(*map(self._inform, self._told))

    async def _inform(self, address: str) -> None:
        period_s = max(min(self._settings.register_name_server_period, 60_000), 10_000) / 1000
        while True:
            version, changed = self.wanted, self._changed
            await self._register(address)
            self._told[address] = version
            self.release(self._known)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(period_s):  # no task for it, as `wait_for` makes one
                    await changed.wait()

    def release(self, version: float = inf) -> None:
        """End all waits for this version or an earlier one; as the broker ends, every wait."""
        waiting = self._waiting
        self._waiting = [one for one in waiting if one[0] > version]
        for _, go_on in (one for one in waiting if one[0] <= version):
            try:
                go_on()
            except Exception:  # noqa: BLE001 - a reply that cannot be sent ends no registration
                _log.exception("broker.work_failed")

    async def first(self) -> None:
        """Return when the broker is known: a client that is told of it now has its routes."""
        is_known = asyncio.Event()
        self.then(is_known.set)
        await is_known.wait()

    async def _register(self, address: str) -> None:
        try:
            if (known := self._topics.content) is not self._encoded[0]:
                self._encoded = known, *self._body(known)
            _, body, is_packed = self._encoded
            about = {"bodyCrc32": "0", "compressed": str(is_packed).lower()}
            fields = {**self._own_fields(), "haServerAddr": "", **about}
            request = Command(RequestCode.REGISTER_BROKER, fields=fields, body=body)
            answer = await self._client.ask(
                address, request, timeout_ms=self._settings.register_broker_timeout_mills
            )
        except Exception as error:  # noqa: BLE001 - those who wait for it go on all the same
            self._note(address, f"{type(error).__name__}: {error}")
            return
        is_known = answer.code == ResponseCode.SUCCESS
        self._note(address, None if is_known else f"code {answer.code}: {answer.remark}")

    def _note(self, address: str, trouble: str | None) -> None:
        """Log when a name server comes or goes, and not each time."""
        if trouble is None:
            if address in self._unreachable:
                _log.info("broker.registered_again", name_server=address)
            self._unreachable.discard(address)
        elif address not in self._unreachable:
            self._unreachable.add(address)
            _log.warning("broker.not_registered", name_server=address, error=trouble)

    async def unregister(self) -> None:
        """Let the name servers forget this broker; those that were given up see it disconnect."""
        request = Command(RequestCode.UNREGISTER_BROKER, fields=self._own_fields())

        async def ask(address: str) -> None:
            try:
                async with asyncio.timeout(UNREGISTER_MS / 1000):  # also to connect to it
                    await self._client.ask(address, request)
            except (RocketStoreError, TimeoutError) as error:
                _log.info("broker.not_unregistered", name_server=address, error=repr(error))

        await asyncio.gather(*map(ask, self._told.keys() - self._unreachable))

    def _own_fields(self) -> dict[str, str]:
        settings = self._settings
        return {
            "brokerName": settings.broker_name, "brokerAddr": settings.address,
            "clusterName": settings.broker_cluster_name, "brokerId": str(settings.broker_id),
        }  # fmt: skip

    def _body(self, known: TopicTable) -> tuple[bytes, bool]:
        granted = self._settings.broker_permission | 1
        topics = {
            name: replace(one, perm=one.perm & granted) if one.perm & ~granted else one
            for name, one in known.topic_config_table.items()
        }
        if not self._settings.compressed_register:
            body = RegisterBrokerBody([], TopicTable(known.data_version, topics))
            plain = msgspec.json.encode(body)  # keys are texts
            if len(plain) <= LONGEST_PLAIN:
                return plain, False
        return pack_registration(known.data_version, topics.values()), True
