"""Which part of a broker answers which code: the one table of all requests."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rocketstore.broker.admin import Admin
from rocketstore.broker.client_manage import ClientManage
from rocketstore.broker.clients import Clients
from rocketstore.broker.flow_control import FlowControl
from rocketstore.broker.giving_back import GivingBack
from rocketstore.broker.offsets import Offsets
from rocketstore.broker.parts import Parts
from rocketstore.broker.pulling import Pulling
from rocketstore.broker.queries import Queries
from rocketstore.broker.queue_locks import QueueLocks
from rocketstore.broker.refused import failure
from rocketstore.broker.send_headers import SendHeaderV2
from rocketstore.broker.sending import Sending
from rocketstore.broker.topics import Topics, Unmade
from rocketstore.broker.transactions import TransactionEnds
from rocketstore.errors import StoreClosedError
from rocketstore.native.sends import SendReader
from rocketstore.remoting.codes import Language
from rocketstore.remoting.command import Command, HeaderKind
from rocketstore.remoting.requests import Call, RequestTable
from rocketstore.units import awake_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rocketstore.broker.loop import Loop
    from rocketstore.broker.registration import Registration
    from rocketstore.broker.settings import BrokerSettings
    from rocketstore.message_store import MessageStore


class BrokerTable(RequestTable):
    """The requests of a broker; `clients` are who is connected, `pulling` what is held.

    Law: once the store was let go of, or in a forked child, nothing is done any more.
    """

    def __init__(
        self, store: MessageStore, settings: BrokerSettings, topics: Topics, loop: Loop,
        registration: Registration, monotonic: Callable[[], int] = awake_ms,
    ) -> None:  # fmt: skip
        self._store, self._topics = store, topics
        self._flow = flow = FlowControl(settings, topics, monotonic)
        self.clients = Clients()
        parts = Parts(store, settings, topics, self.clients, loop, registration, flow, monotonic)
        self.pulling = pulling = Pulling(parts)
        manage = ClientManage(parts)
        others = (Sending, GivingBack, Offsets, QueueLocks, Queries, TransactionEnds)
        families = (pulling, manage, Admin(parts, pulling.given), *(one(parts) for one in others))
        super().__init__(
            [row for family in families for row in family.rows()],
            failed=failure,
            disconnected=(pulling.held.disconnected, manage.disconnected),
            shortcut=SendReader(Command, SendHeaderV2, HeaderKind.JSON, Language.__members__).read,
        )

    def process(self, calls: Sequence[Call]) -> None:
        """Handle what came in one turn."""
        try:
            self._store.check_held()
        except StoreClosedError as error:
            for call in calls:
                call.answer(failure(error, call))
            return
        for place, call in enumerate(calls, 1):
            if (refusal := self._flow.refusal(call, len(calls) - place)) is None:
                self.handle(call)
            else:
                call.answer(refusal)

    def _fail(self, error: BaseException, call: Call) -> None:
        if isinstance(error, Unmade):
            self._topics.wait(error, partial(self.handle, call))
        else:
            super()._fail(error, call)
