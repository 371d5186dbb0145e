"""The broker as a service of an open store: a thread with an event loop, and all its parts.

Law: the thread starts with the store and ends before it; a port that is in use fails the opening.
Before it ends it refuses the pulls that it holds, and leaves its name servers.

How derived: BrokerController of 4.9.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rocketstore.arguments import checked
from rocketstore.broker.admin import CreateTopicHeader
from rocketstore.broker.codes import BrokerRequest
from rocketstore.broker.loop import Loop
from rocketstore.broker.registration import Registration
from rocketstore.broker.table import BrokerTable
from rocketstore.broker.topics import READ_WRITE, Topics, first_topics
from rocketstore.errors import RemotingError, RocketStoreError
from rocketstore.events import get_logger
from rocketstore.format.host import address_text
from rocketstore.format.refusals import check_topic
from rocketstore.nameserver.service import serving
from rocketstore.process import new_event_loop
from rocketstore.remoting.channel import Turns
from rocketstore.remoting.client import RemotingClient
from rocketstore.remoting.fields import Header
from rocketstore.remoting.requests import reply_header, request
from rocketstore.remoting.server import RemotingServer
from rocketstore.storage.attached import Service
from rocketstore.storage.files.disk import system_errors
from rocketstore.storage.threads import ServiceThread, StopSign
from rocketstore.tables.topic_settings import TopicSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rocketstore.broker.settings import BrokerSettings
    from rocketstore.message_store import MessageStore

_log: Final = get_logger(__name__)

VIP_DISTANCE: Final = 2
"""How far below `listen_port` clients send whose VIP channel is on, as 4.5 and older have it."""


class _Running(NamedTuple):
    """What a broker has while it runs."""

    loop: asyncio.AbstractEventLoop
    stopped: asyncio.Event
    client: RemotingClient


class BrokerService(Service):
    """Serves clients of RocketMQ, on one thread.

    Attributes
    ----------
    name_server, address
        ``host:port`` of the name servers that it registers with, separated by ``;``, and its own.
    """

    name = "broker"

    def __init__(self, store: MessageStore, settings: BrokerSettings) -> None:
        self._store = store
        self.settings = settings.in_role(store.config.broker_role)
        self._thread = ServiceThread(
            "rocketstore-broker", self._run, self._wake, ends_by_errors=True
        )
        self._started = StopSign()
        self._failure: BaseException | None = None
        self._kept: list[RemotingServer | RemotingClient] = []
        self._running: _Running | None = None
        self.name_server = settings.namesrv_addr
        self.address = settings.address

    @classmethod
    def with_settings(cls, settings: BrokerSettings) -> Callable[[Any], BrokerService]:
        """Return what makes the service of a store; for ``MessageStore.open(services=…)``."""
        return lambda store: cls(store, settings)

    def start(self) -> None:
        """Listen, and register with the name servers.

        Raises
        ------
        RemotingError
            A port is in use, or the address is not one of this machine.
        SystemRefusedError
            The system refuses something else: a thread, say.
        """
        self._thread.start()
        self._started.wait()
        with system_errors(f"broker {self.settings.broker_name} cannot start"):
            if self._failure is not None:
                raise self._failure

    def stop(self) -> None:
        """Refuse what is held, leave the name servers, and end the thread."""
        self._thread.stop()

    def forget(self, _error: RocketStoreError) -> None:
        """Free a forked child's copies of the ports and connections, which it does not serve."""
        self._running = None
        for one in self._kept:
            one.forget()

    def _wake(self) -> None:
        if (running := self._running) is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                running.loop.call_soon_threadsafe(running.stopped.set)

    @checked
    def make_topic(self, topic: str, queue_count: int = 4) -> None:
        """Make a topic, or change how many queues it has, and tell the name servers.

        Clients that look for it from now on find it: one that consumes what nobody has sent yet
        would look again after half a minute.

        Raises
        ------
        InvalidNameError, ResponseError
            No topic may have this name, or so many queues.
        RemotingError
            The broker is not running.
        """
        running = self._running
        if running is None:
            raise RemotingError(f"broker {self.settings.broker_name} is not running")
        topic = str(check_topic(topic))  # also where it is NumPy's
        header = CreateTopicHeader(
            topic=topic, read_queue_nums=queue_count, write_queue_nums=queue_count, perm=READ_WRITE
        )
        wanted = request(BrokerRequest.UPDATE_AND_CREATE_TOPIC, header)
        asking = running.client.ask(self.settings.address, wanted)
        asked = asyncio.run_coroutine_threadsafe(asking, running.loop)
        reply_header(asked.result(), Header)

    def runtime_info(self) -> Mapping[str, object]:
        """Return what a broker tells of itself."""
        return {"brokerVersion": 399, "brokerVersionDesc": "V4_9_3"}

    # --- on the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:
            self._failure = error
            if self._started.is_set():
                raise
        finally:
            self._running = None
            self._started.set()

    async def _serve(self) -> None:
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_note)
        async with contextlib.AsyncExitStack() as stack:
            name_servers = self.settings.name_servers or [await self._own_name_server(stack)]
            self.name_server = ";".join(name_servers)
            client = await stack.enter_async_context(RemotingClient())
            self._kept.append(client)
            await self._open(stack, client, name_servers)
            self._running = _Running(loop, stopped, client)
            self._started.set()
            if not self._thread.stopping.is_set():
                await stopped.wait()
        _log.info("broker.stopped", name=self.settings.broker_name)

    async def _own_name_server(self, stack: contextlib.AsyncExitStack) -> str:
        host, port, key = self.settings.ports[0]
        server = await stack.enter_async_context(serving(host=host, port=port, port_key=key))
        self._kept.append(server)
        return address_text(*server.address)

    async def _open(
        self, stack: contextlib.AsyncExitStack, client: RemotingClient, name_servers: list[str]
    ) -> None:
        """Listen, and have it all end with the stack."""
        store, settings = self._store, self.settings
        work = Loop(store.attached["async_puts"])
        stack.callback(work.close)
        system, has_light = first_topics(settings), store.config.enable_lmq
        known = TopicSettings(
            store.layout, clock=store.clock, disk=store.disk, system=system, has_light=has_light
        )
        registration = Registration(settings, known, client, name_servers)
        groups = store.attached["consuming"].settings
        for table in (groups.find, store.consumer_offsets.topics_of):
            table("")  # is read: a broken one fails the start, as that of topics does
        topics = Topics(settings, known, groups, registration.note_change, work)
        table = BrokerTable(store, settings, topics, work, registration)
        await self._listen(stack, table)
        registering = asyncio.create_task(registration.run())
        _log.info("broker.started", name=settings.broker_name, address=settings.address)

        async def close() -> None:
            registering.cancel()
            registration.release()
            table.pulling.close()
            await registration.unregister()

        stack.push_async_callback(close)
        await registration.first()

    async def _listen(self, stack: contextlib.AsyncExitStack, table: BrokerTable) -> None:
        """Listen for clients, and two ports below for those with a VIP channel if it is free."""
        host, port, key = self.settings.ports[-1]
        server = await stack.enter_async_context(RemotingServer(Turns(table)))
        self._kept.append(server)
        await server.listen(host, port, key)
        try:
            await server.listen(host, port - VIP_DISTANCE)
        except RemotingError as error:
            _log.warning("broker.no_vip_port", name=self.settings.broker_name, error=str(error))


def _note(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what goes wrong in the loop itself: no descriptor for another connection, say."""
    _log.warning("broker.failed", what=context["message"], error=repr(context.get("exception")))
