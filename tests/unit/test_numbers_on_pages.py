"""Limits and times that pages state are the product's; most tests take them from there."""

import pytest

from rocketstore.broker.client_manage import SCAN_S as CLIENTS_S
from rocketstore.broker.clients import SILENT_MS
from rocketstore.broker.queue_locks import MOST_LOCKS
from rocketstore.broker.registration import UNREGISTER_MS
from rocketstore.cli.replication import HA_PORT
from rocketstore.consuming.giving_back import RETRY_LIMIT
from rocketstore.consuming.group import UNACKNOWLEDGED_LIMIT
from rocketstore.delay.delivery import LOOK_MS, RETRY_MS
from rocketstore.delay.levels import MOST_HELD
from rocketstore.format.registration import LARGEST_REGISTRATION
from rocketstore.metrics.http_server import MOST_PEERS, REQUEST_TIMEOUT_S
from rocketstore.nameserver.routes import SILENCE_MS
from rocketstore.nameserver.service import PORT
from rocketstore.nameserver.service import SCAN_S as BROKERS_S
from rocketstore.remoting.client import CONNECT_MS, REQUEST_MS
from rocketstore.remoting.frame import LONGEST_FRAME
from rocketstore.remoting.limits import DEFAULT_LIMITS as LIMITS
from rocketstore.remoting.server import DRAIN_MS
from rocketstore.replication.master import MOST_CONNECTIONS
from rocketstore.replication.slave import CONNECT_TIMEOUT_MS, FIRST_PAUSE_S, LONGEST_PAUSE_S
from rocketstore.rules.limits import MOST_QUEUES
from rocketstore.storage.dispatch.dispatch_service import MOST_IN_A_TURN_BYTES
from rocketstore.storage.files.ahead import SYNC_AHEAD_BYTES
from rocketstore.storage.kinds.memory_log import ENTRY_OVERHEAD_BYTES
from rocketstore.storage.kinds.memory_topics import AVAILABLE_SHARE
from rocketstore.storage.log.flush import _SLOW_FLUSH_S
from rocketstore.storage.queues.queue_extension import DEFAULT_FILE_BYTES
from rocketstore.storage.reading.pages import LONGEST_EXPRESSION
from rocketstore.storage.workers import DISK_CHECK_INTERVAL_S, FIRST_CLEAN_AFTER_S
from rocketstore.units import KiB, MiB
from support.repository import ROOT

SAID = {
    "how-it-works/remoting": (
        f"header and body; at most {LONGEST_FRAME:,} ",
        f"no byte came or went for {LIMITS.idle_ms // 1000} s",
        f"a frame is not whole {LIMITS.frame_ms // 1000} s after its first byte",
        f"took no byte of its replies for {LIMITS.stall_ms // 1000} s",
        f"more than {LIMITS.most_connections:,} connections",
        f"A connection that holds {LIMITS.connection_bytes // MiB} MiB is not read",
        f"While all connections together hold {LIMITS.total_bytes // MiB} MiB",
        f"If that lasts for {LIMITS.full_ms // 1000} s",
        f"been silent for {SILENCE_MS // 1000} s; a check for that runs every {BROKERS_S:.0f} s",
        f"{REQUEST_MS // 1000} s unless it says otherwise",
        f"which may take {CONNECT_MS // 1000} s to connect",
        f"for which a server waits {DRAIN_MS // 1000} s",
        f"serve namesrv --port {PORT}",
    ),
    "how-it-works/broker": (
        f"has more than {MOST_IN_A_TURN_BYTES // KiB} KiB to go through",
        f"there are at most {MOST_LOCKS:,} ",
        f"that it has not named for {SILENT_MS // 1000} s",
        f"a check for that runs every {CLIENTS_S:.0f} s",
        f"name servers, each of which has {UNREGISTER_MS:,} ms to answer",
    ),
    "how-it-works/replication": (
        f"with pauses of {FIRST_PAUSE_S} s to {LONGEST_PAUSE_S:.0f} s",
        f"--master 127.0.0.1:{HA_PORT}",
        f"connecting may take {CONNECT_TIMEOUT_MS // 1000} s",
        f"at most {MOST_CONNECTIONS} connections",
    ),
    "how-it-works/delay": (
        f"is tried again every {RETRY_MS} ms",
        f"until the next entry is due, at most {LOOK_MS // 1000} s",
        f"up to {MOST_HELD:,} of them",
    ),
    "how-it-works/retention": (
        f"the first one {FIRST_CLEAN_AFTER_S:.0f} s after the start",
        f"a separate thread checks every {DISK_CHECK_INTERVAL_S:.0f} s",
    ),
    "guide/python": (f"for a flush that took more than {_SLOW_FLUSH_S * 1000:.0f} ms",),
    "how-it-works/memory-topics": (
        f"together, {ENTRY_OVERHEAD_BYTES} of each message",
        f"0 is {AVAILABLE_SHARE * 100:.0f} % of the memory",
    ),
    "how-it-works/flush": (f"the next {SYNC_AHEAD_BYTES // KiB} KiB written along",),
    "how-it-works/queue-extension": (
        f"learnt from the files, else {DEFAULT_FILE_BYTES // MiB} MiB",
    ),
    "guide/consume": (
        f"gets at most {UNACKNOWLEDGED_LIMIT:,} messages of a queue",
        f"After {RETRY_LIMIT} tries",
    ),
    "guide/watching": (
        f"A peer has {REQUEST_TIMEOUT_S:.0f} s for a request and its answer",
        f"more than {MOST_PEERS} connections, the oldest",
    ),
    "compatibility": (
        f"0 to {MOST_QUEUES:,} queues",
        f"one above {LONGEST_EXPRESSION:,} characters is refused",
        f"to {LARGEST_REGISTRATION // MiB} MiB at most",
    ),
}


@pytest.mark.parametrize("page", SAID)
def test_a_page_states_the_limits_and_times_that_count(page):
    text = " ".join((ROOT / "docs" / f"{page}.md").read_text("utf-8").split())
    assert [said for said in SAID[page] if said not in text] == []
