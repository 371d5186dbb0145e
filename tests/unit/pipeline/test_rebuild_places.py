"""Queue offsets that repeat, jump, come late or cannot be get the places dispatch gives them."""

from unittest.mock import patch

from hypothesis import example, given, settings
from hypothesis import strategies as st

from rocketstore import StoreConfig
from rocketstore.format.file_name import file_name
from rocketstore.pipeline.jobs.rebuild import rebuild_job
from support.memory import memory_directory
from support.rebuild_oracle import dispatched
from support.rebuild_runs import rebuilt_here
from support.synthetic_log import SyntheticLog, record_bytes
from support.trees import tree

FILE_BYTES = 3000
CONFIG = StoreConfig(
    mapped_file_size_consume_queue=100, max_hash_slot_num=3, max_index_num=8,
    enable_multi_dispatch=True, enable_lmq=True,
)  # fmt: skip

TOPICS = (b"Topic", b"AaTopic", b"BBTopic", b"no/name", b"\xff\xfe", b"SCHEDULE_TOPIC_XXXX")
EXTRA = "INNER_MULTI_DISPATCH\x01{}\x02INNER_MULTI_QUEUE_OFFSET\x01{}\x02"
EXTRAS = (
    EXTRA.format("%LMQ%a,Topic", "0,1"),
    EXTRA.format("%LMQ%a,%LMQ%b", "1,3"),
    EXTRA.format("%LMQ%a", "0,1"),
    EXTRA.format("%LMQ%a,Topic,x/y", "2,x,1"),
)


@st.composite
def records(draw):
    """Draw one record's fields; most go on in their queue."""
    parts = draw(
        st.lists(
            st.sampled_from(["KEYS\x01k1 k2\x02", "UNIQ_KEY\x01u\x02", "DELAY\x012\x02", *EXTRAS]),
            max_size=2,
            unique=True,
        )
    )
    return {
        "topic": draw(st.sampled_from(TOPICS)),
        "queue_id": draw(st.sampled_from([0, 0, 0, 1, -1])),
        "step": draw(
            st.sampled_from([1, 1, 1, 1, 0, 2, 4, 13, -1, -3, -20, 300, 10**6, 2**61, -(2**40)])
        ),
        "properties": "".join(parts).encode(),
        "sys_flag": draw(st.sampled_from([0, 0, 0, 0, 0x4, 0x8, 0xC])),
        "body": bytes(draw(st.integers(0, 120))),
        "first": draw(st.sampled_from([0, 0, 3, 7, 104])),
    }


def write_log(root, wanted):
    (root / "commitlog").mkdir(parents=True)
    reached: dict[tuple[bytes, int], int] = {}
    log, base = SyntheticLog(base=0), 0

    def end_file():
        path = root / "commitlog" / file_name(base)
        path.write_bytes(bytes(log.data.ljust(FILE_BYTES, b"\0")))

    for number, fields in enumerate(wanted):
        key = (fields["topic"], fields["queue_id"])
        offset = fields["first"] if key not in reached else reached[key] + fields["step"]
        if abs(offset) >= 2**62:
            offset = 5
        if not fields["sys_flag"] & 0x4:
            reached[key] = offset
        given = {k: v for k, v in fields.items() if k not in {"step", "first"}}
        given |= {"queue_offset": offset, "store_timestamp_ms": 1_600_000_000_000 + number}
        room = FILE_BYTES - len(log.data)
        if len(record_bytes(0, **given)) + 8 > room:
            log.blank(room)
            end_file()
            base += FILE_BYTES
            log = SyntheticLog(base=base)
        log.add(**given)
    end_file()


PLAIN = {"topic": b"Topic", "queue_id": 0, "properties": b"", "sys_flag": 0, "body": b""}
FAR = PLAIN | {"first": 2**40, "step": 0}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(records(), min_size=1, max_size=60),
    st.sampled_from([400, 1100, 1 << 20]),
    st.sampled_from([5, 10, rebuild_job.PART_ENTRIES]),
)
@example(wanted=[FAR], split=400, part=5)
@example(wanted=[FAR, PLAIN | {"first": 0, "step": 1}], split=400, part=5)
@example(wanted=[FAR, PLAIN | {"first": 0, "step": -(2**40)}], split=1100, part=5)
@example(wanted=[FAR, PLAIN | {"first": 0, "step": 2**61}], split=400, part=5)
@example(wanted=[PLAIN | {"first": 3, "step": 1}] * 23, split=400, part=10)
def test_every_place_is_the_one_that_dispatch_gives(wanted, split, part):
    with memory_directory() as place, patch.object(rebuild_job, "PART_ENTRIES", part):
        store, expected = place / "store", place / "expected"
        write_log(store, wanted)
        queues, index = dispatched(store, expected, config=CONFIG)
        report = rebuilt_here(store, config=CONFIG, max_split_bytes=split)
        assert tree(store / "consumequeue") == queues
        assert list(tree(store / "index").values()) == index
        assert report.record_count == len(wanted)
