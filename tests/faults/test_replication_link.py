"""Replication over a link that may end at any byte, between sides that may die at any moment."""

import contextlib
import errno
import itertools
import random
import socket
from collections import Counter
from types import SimpleNamespace

import pytest

from rocketstore.format.record import encode_blank
from rocketstore.replication.link import Link, LinkBell
from rocketstore.replication.protocol import FRAME, NUMBER, PeerError, Trouble, Welcome
from rocketstore.replication.slave_session import SlaveSession
from rocketstore.tables.positions import known_start
from support.failing_calls import FailingCalls, Fault
from support.simulated_link import FILE_BYTES, LIMITS, MemoryLog, Simulation, real_log

SEEDS = 1000
STEPS = 400

ONLY_CUTS = {Trouble.SILENT}


@pytest.mark.parametrize("master_of_4_9", [False, True])
def test_in_the_end_both_logs_are_equal_whatever_happened_between(master_of_4_9, monkeypatch):
    """Cuts at any byte, kills of either side, sides that are slow or stuck, strangers.

    No put waits longer than it may, and what one heard to be on the slave is there.
    """
    acknowledged = grown = 0
    seen = Counter()
    for seed in range(SEEDS):
        simulation = Simulation(seed, master_of_4_9=master_of_4_9)
        simulation.use_time(monkeypatch)
        try:
            simulation.run(STEPS)
            simulation.put()
            simulation.finish()
            simulation.check()
            assert simulation.slave.end == simulation.master.end
            # An empty slave gets only the last file of a master of 4.9 (K-H4).
            assert simulation.slave.begin == 0 or master_of_4_9
            assert {each.trouble for each in simulation.refusals} <= ONLY_CUTS
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        acknowledged += simulation.acknowledged > 0
        grown += simulation.slave.end > 4096
        seen += simulation.seen
    happened = ["master killed", "slave killed", "stuck", "stranger"]
    heard = ["PUT_OK", "FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE"]
    assert min(seen[what] for what in happened + heard) > SEEDS // 20, seen
    assert acknowledged > SEEDS // 2, "the runs acknowledge too little to show anything"
    assert grown > SEEDS // 10, "the runs reach no second file"


def test_a_ring_that_failed_is_no_ring(tmp_path):
    with contextlib.closing(LinkBell()) as bell:
        with FailingCalls(
            tmp_path, Fault("socket.send", 0, errno.ENOBUFS, lasting=False), sockets=True
        ):
            bell.ring()
            with pytest.raises(BlockingIOError):
                bell.ear.recv(1)
            bell.ring()
        assert bell.ear.recv(1)


def session_pair(master, slave):
    simulation = Simulation(0, master_of_4_9=False)
    simulation.master, simulation.slave = master, slave
    simulation.connect()
    return simulation


def log_of(data, begin=0):
    log = MemoryLog()
    log.data, log.begin, log.is_new = bytearray(data), begin, False
    return log


def refusal(master, slave):
    """Return why the slave does not follow, as the slave is told."""
    simulation = session_pair(master, slave)
    simulation.finish()
    assert simulation.refusals
    return simulation.refusals[0]


def test_a_slave_that_is_ahead_is_refused_and_says_so():
    data, ends = real_log()
    error = refusal(log_of(data[: ends[5]]), log_of(data[: ends[9]]))
    assert error.trouble is Trouble.AHEAD
    assert str(ends[9]) in str(error)
    assert str(ends[5]) in str(error)


def test_a_slave_that_is_too_old_is_refused_and_says_so():
    data, ends = real_log()
    error = refusal(log_of(data, begin=8192), log_of(data[: ends[0]]))
    assert error.trouble is Trouble.TOO_OLD
    assert "8192" in str(error)


def test_a_slave_whose_compared_bytes_retention_took_on_the_master_follows_from_its_end():
    data = real_log()[0]
    slave = log_of(data[:FILE_BYTES])
    simulation = session_pair(log_of(data, begin=FILE_BYTES), slave)
    simulation.finish()
    assert simulation.refusals == []
    assert slave.data == data


@pytest.mark.parametrize("records", [1, 2, 10])
def test_a_slave_with_another_log_is_noticed_before_a_byte_is_appended(records):
    data, ends = real_log()
    other = bytearray(data[: ends[records - 1]])
    other[ends[records - 1] - 30] ^= 1
    slave = log_of(other)
    assert refusal(log_of(data), slave).trouble is Trouble.DIVERGED
    assert slave.data == other


def test_files_of_another_size_are_noticed(monkeypatch):
    slave = MemoryLog()
    monkeypatch.setattr(slave, "file_size", 8192, raising=False)
    assert refusal(log_of(real_log()[0]), slave).trouble is Trouble.FILE_SIZE


def test_a_damaged_record_is_not_appended_and_what_stands_before_it_is():
    data, ends = real_log()
    damaged = bytearray(data)
    broken = next(n for n, end in enumerate(ends) if n and end - ends[n - 1] > 300)
    damaged[ends[broken] - 150] ^= 0x40  # in its body
    slave = MemoryLog()
    error = refusal(log_of(damaged), slave)
    assert error.trouble is Trouble.DAMAGED
    assert str(ends[broken - 1]) in str(error)
    assert slave.data == data[: ends[broken - 1]]


@pytest.mark.parametrize(
    ("numbers", "trouble"),
    [
        ([10**15], Trouble.AHEAD),
        ([-5], Trouble.PROTOCOL),
        ([0, 10**15], Trouble.PROTOCOL),
        ([0, -1], Trouble.PROTOCOL),
        ([4096, 100], Trouble.PROTOCOL),
        ([-1, 0, 7, -1], Trouble.PROTOCOL),
    ],
)
def test_a_number_that_cannot_be_true_ends_the_connection(numbers, trouble):
    simulation = session_pair(log_of(real_log()[0]), MemoryLog())
    master, _ = simulation._sessions
    for number in numbers[:-1]:
        master.receive(number.to_bytes(8, "big", signed=True), 0)
        master.outgoing(0)
    with pytest.raises(PeerError) as refused:
        master.receive(numbers[-1].to_bytes(8, "big", signed=True), 0)
    assert refused.value.trouble is trouble
    assert master.acknowledged <= 4096


def test_a_slave_of_4_9_that_is_too_old_is_refused():
    simulation = session_pair(log_of(real_log()[0], begin=8192), MemoryLog())
    master, _ = simulation._sessions
    with pytest.raises(PeerError, match=r"asks for 4096, .* begins at 8192") as refused:
        master.receive((4096).to_bytes(8, "big"), 0)
    assert refused.value.trouble is Trouble.TOO_OLD


def test_a_slave_of_4_9_that_is_ahead_is_refused():
    data = real_log()[0]
    master, _ = session_pair(log_of(data), MemoryLog())._sessions
    with pytest.raises(PeerError, match=rf"asks for {1 << 40}, .* ends at {len(data)}") as refused:
        master.receive((1 << 40).to_bytes(8, "big"), 0)
    assert refused.value.trouble is Trouble.AHEAD


def test_retention_that_overtakes_a_slow_slave_ends_its_connection():
    simulation = session_pair(log_of(real_log()[0]), MemoryLog())
    master, _ = simulation._sessions
    master.receive((0).to_bytes(8, "big", signed=True), 0)
    master.position = 100
    simulation.master.begin = 8192
    with pytest.raises(PeerError) as refused:
        master.outgoing(0)
    assert refused.value.trouble is Trouble.TOO_OLD


@pytest.mark.parametrize(
    "frame",
    [
        (0).to_bytes(8, "big") + (2**31 - 1).to_bytes(4, "big"),
        (0).to_bytes(8, "big") + (-1).to_bytes(4, "big", signed=True),
        (-2).to_bytes(8, "big", signed=True) + bytes(4),
        (-1).to_bytes(8, "big", signed=True) + (4000).to_bytes(4, "big"),
        (-1).to_bytes(8, "big", signed=True) + (44).to_bytes(4, "big") + bytes(44),
        2 * Welcome(FILE_BYTES, 0, 0, -1, 0).encode(),
        Welcome(FILE_BYTES, 0, 0, -1, 0).encode().replace(b"RSHA", b"RSHB"),
        Welcome(FILE_BYTES, 0, 0, -1, 0).encode().replace(b"RSHA\0\0\0\1", b"RSHA\0\0\0\2"),
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
    ],
)
def test_a_frame_that_no_master_sends_ends_the_connection(frame):
    simulation = session_pair(MemoryLog(), MemoryLog())
    _, slave = simulation._sessions
    with pytest.raises(PeerError) as refused:
        slave.receive(frame, 0)
    assert refused.value.trouble is Trouble.PROTOCOL
    assert simulation.slave.end == 0


def test_random_bytes_are_refused_or_wait_and_never_reach_a_log():
    source = random.Random(5)
    for _ in range(2000):
        simulation = session_pair(log_of(real_log()[0]), MemoryLog())
        for side in (0, 1):
            try:
                for _ in range(5):
                    session = simulation._sessions[side]
                    session.receive(source.randbytes(source.randrange(1, 60)), 0)
            except PeerError:
                continue
        assert simulation.slave.end == 0


@pytest.mark.parametrize("side", [0, 1])
def test_a_side_that_sends_a_byte_at_a_time_without_meaning_is_given_up(side):
    simulation = session_pair(log_of(real_log()[0]), MemoryLog())
    session = simulation._sessions[side]
    for now_ms in range(0, LIMITS.silence_ms, LIMITS.silence_ms // 4):
        session.receive(b"\0", now_ms)
        session.outgoing(now_ms)
    session.receive(b"\0", LIMITS.silence_ms)
    with pytest.raises(PeerError) as refused:
        session.outgoing(LIMITS.silence_ms)
    assert refused.value.trouble is Trouble.SILENT


@pytest.mark.parametrize("master_of_4_9", [False, True])
def test_two_sides_that_have_nothing_to_say_keep_each_other(master_of_4_9):
    simulation = Simulation(0, master_of_4_9=master_of_4_9)
    simulation.master = log_of(real_log()[0])
    simulation.finish()
    for _ in range(4 * LIMITS.silence_ms // LIMITS.heartbeat_ms):
        simulation.exchange(after_ms=LIMITS.heartbeat_ms)
        assert not any(one.outgoing(simulation.now_ms) for one in simulation._sessions), "again"
    assert simulation.refusals == []


def test_a_slave_that_compares_a_long_record_is_not_silent_meanwhile():
    log = log_of(real_log()[0])
    slave = SlaveSession(log, LIMITS, identity=7, from_last_file=False, now_ms=0)
    start = known_start(log.read, log.file_size, log.end)
    assert slave.outgoing(0)
    slave.receive(FRAME.pack(start, 1) + log.read(start, 1), 0)
    assert slave.outgoing(LIMITS.heartbeat_ms) == NUMBER.pack(start)
    assert not slave.is_following


def test_a_slave_that_is_ahead_of_a_master_of_4_9_gets_only_heartbeats_and_says_so():
    log = log_of(real_log()[0])
    slave = SlaveSession(log, LIMITS, identity=7, from_last_file=False, now_ms=0)
    sign = FRAME.pack(known_start(log.read, log.file_size, log.end), 0)
    assert slave.outgoing(0)
    for now_ms in (500, 1000, 1500):  # so long a master that is being closed sends no bytes
        slave.receive(sign, now_ms)
        assert not slave.outgoing(now_ms)  # 4.9.8 ends the connection at a number after its end
    with pytest.raises(PeerError, match="the master sends nothing from") as refused:
        slave.receive(sign, 2000)
    assert refused.value.trouble is Trouble.AHEAD
    slow = SlaveSession(log, LIMITS, identity=7, from_last_file=False, now_ms=0)
    slow.receive(sign, 5000)  # the bytes may still come


def test_a_peer_that_takes_no_byte_is_given_up():
    here, there = socket.socketpair()
    times = itertools.count(step=LIMITS.silence_ms // 4)
    endless = SimpleNamespace(outgoing=lambda _now_ms: bytes(1 << 20), next_due_ms=lambda: 0)
    link = Link(here, clock=lambda: next(times), name="peer")
    with there, contextlib.closing(link), pytest.raises(PeerError, match="it takes no byte"):
        link.run(endless, LIMITS.silence_ms)


def test_a_peer_is_not_silent_that_spoke_and_took_bytes_while_this_process_stood_still():
    here, there = socket.socketpair()
    there.settimeout(0)
    slave = SlaveSession(MemoryLog(), LIMITS, identity=7, from_last_file=False, now_ms=0)
    slave.outgoing = lambda now_ms: slave._signs.check(now_ms) or bytes(1 << 20)
    times = iter(range(0, 20 * LIMITS.silence_ms, LIMITS.silence_ms))

    def clock() -> int:
        """Between two looks as much time passes as a peer may be silent, and it is not."""
        with contextlib.suppress(BlockingIOError):
            there.recv(1 << 20)
        there.sendall(FRAME.pack(0, 0))
        return next(times)

    link = Link(here, clock=clock, name="peer")
    with there, contextlib.closing(link), pytest.raises(StopIteration):
        link.run(slave, LIMITS.silence_ms)


def test_a_frame_that_leaves_a_file_names_the_size_of_files():
    """K-H8: a master of 4.9 whose files are larger does not say so, but sends such frames."""
    slave = SlaveSession(MemoryLog(), LIMITS, identity=7, from_last_file=False, now_ms=0)
    with pytest.raises(PeerError, match="mappedFileSizeCommitLog") as refused:
        slave.receive(FRAME.pack(0, FILE_BYTES + 1) + bytes(FILE_BYTES + 1), 0)
    assert refused.value.trouble is Trouble.FILE_SIZE


def test_a_blank_may_be_longer_than_any_record():
    """Where a batch of many small messages did not fit into what was left of the file."""
    data, ends = real_log()
    left = FILE_BYTES - ends[0]
    blank = encode_blank(left).ljust(left, b"\0")
    slave = MemoryLog()
    simulation = session_pair(log_of(data[: ends[0]] + blank + data[FILE_BYTES:]), slave)
    simulation.limits = LIMITS._replace(longest_record_bytes=left - 1)
    simulation.finish()
    assert simulation.refusals == []
    assert slave.end == len(data)


def test_a_record_longer_than_the_limit_is_refused_before_it_fills_the_memory():
    simulation = session_pair(log_of(real_log()[0]), MemoryLog())
    simulation.limits = LIMITS._replace(longest_record_bytes=1000)
    simulation.finish()
    assert simulation.refusals[0].trouble is Trouble.DAMAGED
    assert "maxMessageSize" in str(simulation.refusals[0])
