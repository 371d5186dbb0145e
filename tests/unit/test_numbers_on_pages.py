"""Limits and times that pages state are the product's; most tests take them from there."""

import pytest

from rocketstore.broker.queue_locks import MOST_LOCKS
from rocketstore.consuming.group import UNACKNOWLEDGED_LIMIT
from rocketstore.delay.delivery import RETRY_MS
from rocketstore.nameserver.bodies import LARGEST_REGISTRATION
from rocketstore.nameserver.routes import SILENCE_MS
from rocketstore.remoting.frame import LONGEST_FRAME
from rocketstore.remoting.limits import DEFAULT_LIMITS as LIMITS
from rocketstore.replication.master import MOST_CONNECTIONS
from rocketstore.replication.slave import FIRST_PAUSE_S, LONGEST_PAUSE_S
from rocketstore.rules.limits import MOST_QUEUES
from rocketstore.storage.dispatch.dispatch_service import MOST_IN_A_TURN_BYTES
from rocketstore.storage.files.ahead import SYNC_AHEAD_BYTES
from rocketstore.storage.queues.queue_extension import DEFAULT_FILE_BYTES
from rocketstore.storage.reading.pages import LONGEST_EXPRESSION
from rocketstore.units import KiB, MiB
from support.repository import ROOT

SAID = {
    "how-it-works/remoting": (
        f"header and body; at most {LONGEST_FRAME:,} ",
        f"nothing moved for {LIMITS.idle_ms // 1000} s",
        f"a frame is not whole {LIMITS.frame_ms // 1000} s after its first byte",
        f"took no byte of its replies for {LIMITS.stall_ms // 1000} s",
        f"more than {LIMITS.most_connections:,} connections",
        f"A connection that holds {LIMITS.connection_bytes // MiB} MiB is not read",
        f"Where all connections together hold {LIMITS.total_bytes // MiB} MiB",
        f"If that lasts for {LIMITS.full_ms // 1000} s",
        f"or when it was silent for {SILENCE_MS // 1000} s",
    ),
    "how-it-works/broker": (
        f"has more than {MOST_IN_A_TURN_BYTES // KiB} KiB to go through",
        f"there are at most {MOST_LOCKS:,} ",
    ),
    "how-it-works/replication": (
        f"with pauses of {FIRST_PAUSE_S} s to {LONGEST_PAUSE_S:.0f} s",
        f"at most {MOST_CONNECTIONS} connections",
    ),
    "how-it-works/delay": (f"is tried again every {RETRY_MS} ms",),
    "how-it-works/flush": (f"the next {SYNC_AHEAD_BYTES // KiB} KiB written along",),
    "how-it-works/queue-extension": (
        f"learnt from the files, else {DEFAULT_FILE_BYTES // MiB} MiB",
    ),
    "guide/consume": (f"gets {UNACKNOWLEDGED_LIMIT:,} messages of a queue",),
    "compatibility": (
        f"0 to {MOST_QUEUES:,} queues",
        f"one above {LONGEST_EXPRESSION:,} characters is refused",
        f"to {LARGEST_REGISTRATION // MiB} MiB at most",
    ),
}


@pytest.mark.parametrize("page", SAID)
def test_a_page_states_the_limits_and_times_that_count(page: str) -> None:
    text = " ".join((ROOT / "docs" / f"{page}.md").read_text("utf-8").split())
    assert [said for said in SAID[page] if said not in text] == []
