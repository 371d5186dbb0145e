"""The offset of a group passes only what is acknowledged without a gap (ProcessQueue)."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from rocketstore.consuming.group import share_of
from rocketstore.consuming.window import QueueWindow

OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.integers(0, 4), st.integers(0, 3)),
        st.tuples(st.just("deliver"), st.sampled_from("AB")),
        st.tuples(st.just("acknowledge"), st.integers(0, 30)),
        st.tuples(st.just("take back"), st.sampled_from("AB")),
    ),
    max_size=60,
)


def message(offset):
    return SimpleNamespace(queue_offset=offset)


@given(start=st.integers(0, 9), operations=OPERATIONS)
def test_an_offset_never_passes_a_message_that_is_not_acknowledged(start, operations):
    window = QueueWindow(start)
    read, waiting, with_holder, acknowledged = [], set(), {}, set()
    for name, *arguments in operations:
        if name == "read":
            count, skipped = arguments
            first = window.next_offset + skipped  # tags that nobody wants
            offsets = range(first, first + count)
            window.add([message(offset) for offset in offsets], first + count)
            read += offsets
            waiting |= set(offsets)
        elif name == "deliver" and window.has_ready:
            delivery = window.deliver(arguments[0])
            # Always the first of those that nobody has.
            assert delivery.message.queue_offset == min(waiting)
            waiting.discard(delivery.message.queue_offset)
            with_holder[delivery] = arguments[0]
        elif name == "acknowledge" and with_holder:
            delivery = list(with_holder)[arguments[0] % len(with_holder)]
            assert window.acknowledge(delivery)
            assert not window.acknowledge(delivery)
            acknowledged.add(delivery.message.queue_offset)
            del with_holder[delivery]
        elif name == "take back":
            window.take_back(arguments[0])
            back = [each for each, holder in with_holder.items() if holder == arguments[0]]
            for delivery in back:
                assert not window.acknowledge(delivery)
                waiting.add(delivery.message.queue_offset)
                del with_holder[delivery]
        open_offsets = [offset for offset in read if offset not in acknowledged]
        assert window.offset == min(open_offsets, default=window.next_offset)
        assert len(window) == len(open_offsets)
        assert window.has_ready == bool(waiting)


@given(queues=st.integers(0, 40), members=st.integers(1, 50))
def test_shares_are_averagely_as_java_allocates_them(queues, members):
    everything = list(range(queues))
    shares = [list(share_of(everything, index, members)) for index in range(members)]
    assert [queue for share in shares for queue in share] == everything
    for index, share in enumerate(shares):
        # AllocateMessageQueueAveragely.allocate, line by line.
        more = queues % members
        size = queues // members + (more > 0 and index < more) if queues > members else 1
        start = index * size if more > 0 and index < more else index * size + more
        length = min(size, queues - start)
        assert share == [everything[(start + n) % queues] for n in range(max(length, 0))]
