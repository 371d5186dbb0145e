"""SIGKILL at any moment: nothing that was acknowledged or seen is lost, in either flush mode."""

from pathlib import Path

import pytest

from rocketstore import MessageStore, verify_store
from rocketstore.config import FlushDiskType
from support.crash_writer import CYCLE_MS, CrashWriter, writer_config
from support.fault_settings import base_seed, kill_count
from support.fault_workload import Label, check_store, labels_of
from support.patience import PATIENCE_S

CYCLES = 10
"""Kills that one store survives, one after the other."""

STORES = range(max(1, -(-kill_count() // (2 * CYCLES))))


@pytest.fixture(scope="module")
def writer():
    with CrashWriter() as process:
        yield process


class Witness:
    """What a store's writers said over several lives."""

    def __init__(self) -> None:
        self.tried: set[Label] = set()
        self.acknowledged: dict[Label, tuple[int, int]] = {}
        self.seen: dict[Label, int] = {}

    def hear(self, lines: list[dict]) -> None:
        reached: dict[tuple[int, int], int] = {}
        for line in lines:
            if "seen" in line:
                self.seen[Label.parse(line["seen"])] = line["at"]
                continue
            run, thread, step = line["put"]
            reached[run, thread] = step
            for part, offset in enumerate(line["at"]):
                label = Label(run, thread, step, part)
                self.acknowledged[label] = offset, line["queue_offset"] + part
        self._note_tried(lines, reached)

    def _note_tried(self, lines: list[dict], reached: dict[tuple[int, int], int]) -> None:
        runs = {line["put"][0] for line in lines if "put" in line}
        for run in runs or set():
            for thread in range(3):
                self.try_up_to(run, thread, reached.get((run, thread), 0) + 1)

    def try_up_to(self, run: int, thread: int, step: int) -> None:
        """All steps up to this one may be in the store: each thread has one call under way."""
        for number in range(1, step + 1):
            self.tried.update(labels_of(run, thread, number))


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("flush", [flush.value for flush in FlushDiskType])
@pytest.mark.parametrize("number", STORES)
def test_a_store_survives_kill_after_kill(writer, tmp_path_factory, flush, number):
    root = tmp_path_factory.mktemp("on_disk")
    seed = base_seed() + number
    witness = Witness()
    for cycle in range(CYCLES):
        said = writer.run(root, flush, seed=seed, cycle=cycle)
        for thread in range(3):
            witness.try_up_to(seed * 1000 + cycle, thread, 1)
        witness.hear(said["lines"])
        check_said(root, flush, witness, now_ms=1_700_000_000_000 + (cycle + 1) * CYCLE_MS)
    report = verify_store(root, writer_config(flush))
    bad = [finding for finding in report.findings if finding.severity.value != "note"]
    assert not bad, bad


def check_said(root: Path, flush: str, witness: Witness, *, now_ms: int) -> None:
    """Open the store as the next writer would, and compare it with what was said."""
    with MessageStore.open(root, writer_config(flush), clock=lambda: now_ms) as store:
        assert store.wait_dispatched(timeout_s=PATIENCE_S)
        found = check_store(store, witness.tried, witness.acknowledged)
        for label, offset in witness.seen.items():
            assert label in found, f"lost {label}, which a consumer saw"
            assert found[label].physical_offset == offset
