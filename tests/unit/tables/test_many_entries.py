"""One entry of a large table changed: no other is made text again, and nothing is parsed."""

import contextlib
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketstore import FormatError, StoreConfig
from rocketstore.errors import StoreError
from rocketstore.format import metadata_json
from rocketstore.format.metadata_json import (
    ConsumerOffsets,
    SubscriptionGroup,
    TopicConfig,
    decode_table,
    dumps,
    loads,
)
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.layout import StoreLayout
from rocketstore.tables import consumer_offsets
from rocketstore.tables.groups import SubscriptionGroups
from rocketstore.tables.topic_settings import TopicSettings
from support.clock import Clock
from support.failing_disk import FailingDisk
from support.offset_table import offset_table

MANY = 60


@pytest.fixture
def made(monkeypatch):
    """Return how many members were made text, and how many tables were parsed."""
    counts: Counter[str] = Counter()

    def counted(module: Any, name: str) -> None:
        work = getattr(module, name)

        def call(*arguments: Any, **how: Any) -> Any:
            counts[name] += 1
            return work(*arguments, **how)

        monkeypatch.setattr(module, name, call)

    for module in (metadata_json, consumer_offsets):
        counted(module, "member_text")
    counted(metadata_json.json, "loads")
    return counts


def offsets_at(root: Path) -> Callable[[int, int], None]:
    table = offset_table(root)

    def save(first: int, count: int) -> None:
        for number in range(first, first + count):
            table.set("orders", f"group-{number}", 0, first + count)
        table.save()

    return save


def topics_at(root: Path) -> Callable[[int, int], None]:
    table = TopicSettings(StoreLayout.of(root), clock=Clock(), disk=Disk())
    return lambda first, count: table.settle(
        *(TopicConfig(topic_name=f"topic-{one}") for one in range(first, first + count))
    )


def groups_at(root: Path) -> Callable[[int, int], None]:
    table = SubscriptionGroups(StoreLayout.of(root))
    return lambda first, count: table.settle(
        *(SubscriptionGroup(group_name=f"group-{one}") for one in range(first, first + count))
    )


TABLES = {
    "consumerOffset.json": offsets_at, "topics.json": topics_at, "subscriptionGroup.json": groups_at
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_one_change_of_a_large_table_makes_one_entry_text_and_parses_nothing(tmp_path, made, name):
    settle = TABLES[name](tmp_path)
    settle(0, MANY)
    path = tmp_path / "config" / name
    for number in (7, MANY):  # a known one, and a new one
        made.clear()
        settle(number, 1)
        assert made == {"member_text": 1}
    content = loads(path.read_bytes())
    assert path.read_text() == dumps(content)
    assert max(map(len, content.values())) == MANY + 1


@pytest.mark.parametrize("name", TABLES)
def test_what_another_program_wrote_is_judged_before_it_becomes_the_backup(tmp_path, name):
    settle = TABLES[name](tmp_path)
    settle(0, 2)
    path = tmp_path / "config" / name
    good = path.read_bytes()
    settle(1, 3)
    path.write_bytes(b"{ no table")
    try:
        settle(5, 1)
    except FormatError:  # where others change it too, it is read before each change
        assert name == "topics.json"
    backup = path.with_name(name + ".bak").read_bytes()
    assert loads(backup) == loads(good)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("lmq", [False, True])
def test_the_file_has_every_offset_whatever_changed_and_failed_before(tmp_path, seed, *, lmq):
    chance, disk, config = random.Random(seed), FailingDisk(), StoreConfig(enable_lmq=lmq)
    table = offset_table(tmp_path, config, disk=disk)
    for _ in range(25):
        for _ in range(chance.randrange(5)):
            group = chance.choice(["a", "b", "%LMQ%c", "%LMQ%d"])
            table.set(chance.choice("xyz"), group, chance.randrange(3), chance.randrange(50))
        if chance.random() < 0.3:
            disk.fails_sync = {"*"}
            with contextlib.suppress(StoreError):  # no offset may have changed
                table.save()
            disk.fails_sync = set()
        table.save()
        if table.path.exists():
            known = decode_table(table.path.read_bytes(), ConsumerOffsets).by_name()
            assert {name: queues for name, queues in known.items() if queues} == table.snapshot()
    assert table.path.exists()
