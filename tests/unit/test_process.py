"""How many files and sockets a process may have, whatever its system says."""

import resource

import pytest

from rocketstore import process
from rocketstore.process import most_mapped_files, raise_descriptors
from rocketstore.storage.queues import queue_mappings
from rocketstore.storage.queues.queue_mappings import QueueMappings


@pytest.mark.parametrize(
    ("limits", "asked", "granted"),
    [
        ((64, 512), (512, 512), 512),
        ((64, resource.RLIM_INFINITY), (1 << 20, resource.RLIM_INFINITY), 1 << 20),
        ((512, 512), None, 512),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), None, 1 << 20),
    ],
)
@pytest.mark.parametrize("refuses", [False, True])
def test_a_limit_of_files_is_raised_as_far_as_the_system_lets(
    monkeypatch, limits, asked,
    granted, *, refuses,
):  # fmt: skip
    now, seen = [limits], []

    def set_limits(_which: int, wanted: tuple[int, int]) -> None:
        seen.append(wanted)
        if refuses:
            raise ValueError("not allowed to raise maximum limit")
        now[0] = wanted

    monkeypatch.setattr(resource, "getrlimit", lambda _which: now[0])
    monkeypatch.setattr(resource, "setrlimit", set_limits)
    before = limits[0] if limits[0] != resource.RLIM_INFINITY else 1 << 20
    assert raise_descriptors() == (before if refuses else granted)
    assert seen == ([] if asked is None else [asked])


def test_where_linux_maps_fewer_files_than_may_be_open_queues_have_half_of_those(monkeypatch):
    """A process may often have a million files open, and map 65,530."""
    monkeypatch.setattr(process, "most_descriptors", lambda: 1_000_000)
    monkeypatch.setattr(process, "_most_maps", lambda: 1000)
    monkeypatch.setattr(queue_mappings, "raise_descriptors", lambda _wanted: 4_000_000)
    assert most_mapped_files() == 1000
    mappings = QueueMappings()
    assert mappings._writer_limit == 500
    assert not mappings._raise_limit()
