"""Of two rebuilds of one store on an object store one goes on at most; one that died counts not."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from rocketstore.errors import StoreError, StoreLockedError
from rocketstore.pipeline.jobs.rebuild import claims
from rocketstore.pipeline.jobs.rebuild.job import rebuild_with
from rocketstore.pipeline.objects import ObjectStore
from support.rebuild_oracle import Here
from support.small_store import START_MS, Clock, build_store


@pytest.fixture
def there(tmp_path, s3):
    """A small store on the object store."""
    build_store(tmp_path / "store", 90, Clock())
    s3.put_tree(tmp_path / "store", "store")
    return s3.uri("store")


def rebuilt(location, **keywords):
    return rebuild_with(Here(), location, sole_writer=True, now_ms=START_MS, **keywords)


def claim_keys(s3):
    return [key for key in objects_of(s3) if "/rebuild-claims/" in key]


def objects_of(s3):
    """Return the objects but marks of directories, which pyarrow makes as it likes."""
    return {key: content for key, content in s3.objects.items() if not key.endswith("/")}


def put_claim(s3, name="of-another.json", **changes):
    """Put the claim of another machine's run."""
    owner = {"host": "elsewhere", "machine": "boot/pid:[1]", "pid": 7, "began": "1"}
    owner |= {"since": "2026-11-21T10:00:00+00:00"} | changes
    s3.objects[f"store/rebuild-claims/{name}"] = json.dumps(owner).encode()


STEPS = ("built", "keep", "intent", "place consumequeue", "remove index", "finish", "sweep")


@pytest.mark.parametrize("moment", STEPS)
def test_a_second_rebuild_is_refused_at_every_step_of_the_first(there, s3, moment):
    seen = []

    def step(name):
        if name == moment and not seen:
            before = objects_of(s3)
            with pytest.raises(StoreLockedError, match=f"process {os.getpid()} on ") as caught:
                rebuilt(there)
            assert "--take-over" in str(caught.value.hint)
            assert objects_of(s3) == before
            seen.append(name)

    assert rebuilt(there, step=step).record_count == 90
    assert seen == [moment]
    assert not claim_keys(s3)
    assert not s3.tree("store/rebuild")


def test_a_rebuild_that_fails_leaves_no_claim(there, s3):
    def fail(name):
        raise StoreError(name)

    with pytest.raises(StoreError, match="built"):
        rebuilt(there, step=fail)
    assert not claim_keys(s3)
    assert rebuilt(there).record_count == 90


def test_the_claim_of_another_machine_counts_until_it_is_taken_over(there, s3):
    put_claim(s3)
    s3.objects["store/rebuild/0123/consumequeue/Topic0/0/00000000000000000000"] = b"of the other"
    before = objects_of(s3)
    with pytest.raises(
        StoreLockedError, match="process 7 on elsewhere, since 2026-11-21"
    ) as caught:
        rebuilt(there)
    assert (caught.value.owner_pid, objects_of(s3)) == (7, before)
    assert rebuilt(there, take_over=True).record_count == 90
    assert not claim_keys(s3)
    assert not s3.tree("store/rebuild")


def test_a_claim_that_cannot_be_read_counts_too(there, s3):
    s3.objects["store/rebuild-claims/torn.json"] = b"{"
    with pytest.raises(StoreLockedError, match="cannot be read"):
        rebuilt(there)
    assert rebuilt(there, take_over=True).record_count == 90


KILLED = """
import os, signal, sys
from rocketstore.pipeline.jobs.rebuild.job import rebuild_with
from support.rebuild_oracle import Here

def step(name):
    if name == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)

rebuild_with(Here(), sys.argv[1], sole_writer=True, now_ms=1_700_000_000_000, step=step)
"""


@pytest.mark.parametrize("moment", ["built", "place index"])
def test_what_was_killed_on_this_machine_is_swept_without_a_word(there, s3, moment):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", KILLED, there, moment]
    ended = subprocess.run(command, env=environment, check=False, timeout=120)
    assert ended.returncode == -9
    (key,) = claim_keys(s3)
    assert json.loads(s3.objects[key])["pid"] not in {os.getpid(), 0}
    assert rebuilt(there).record_count == 90
    assert not claim_keys(s3)
    assert not s3.tree("store/rebuild")


def test_a_process_that_runs_or_cannot_be_judged_has_not_ended():
    own = claims._owner(START_MS)
    assert own.has_ended("of a run that is over")
    assert not claims.Owner("", own.machine, 1, claims._began(1), "").has_ended("x")
    # The same number, given to a process that began at another time.
    assert claims.Owner("", own.machine, 1, "12", "").has_ended("x")
    assert not claims.Owner("", "", own.pid, "1", "").has_ended("x")
    assert not claims.Owner("", "boot/pid:[1]", 2**22 + 1, "1", "").has_ended("x")
    assert claims.Owner("", own.machine, 2**22 + 1, "1", "").has_ended("x")


def test_a_run_that_was_taken_over_replaces_and_removes_nothing(there, s3):
    before = {key: value for key, value in s3.objects.items() if "/consumequeue/" in key}

    def step(name):
        if name == "keep":
            for key in claim_keys(s3):
                del s3.objects[key]
            s3.objects["store/rebuild/of-the-other/consumequeue/x"] = b"being made"

    with pytest.raises(StoreLockedError, match="taken over by another rebuild"):
        rebuilt(there, step=step)
    assert "store/rebuild/of-the-other/consumequeue/x" in s3.objects
    assert "store/rebuild/placing.json" not in s3.objects
    assert {key: s3.objects[key] for key in before} == before


@pytest.mark.parametrize("order", ["aabb", "abab", "abba", "baab"])
def test_two_that_begin_at_one_moment_never_both_go_on(there, monkeypatch, order):
    """Each writes (first letter of its kind), then lists (second), in every order."""
    objects = ObjectStore(there)
    refuse = claims._refuse_others
    waiting = {}
    monkeypatch.setattr(
        claims, "_refuse_others", lambda _, own, ended: waiting.update({own: ended})
    )
    entered, names = {}, {}
    outcomes = {}
    for letter in order:
        if letter not in entered:
            context = claims.claimed(objects, take_over=False, now_ms=START_MS)
            known = set(waiting)
            context.__enter__()
            entered[letter] = context
            (names[letter],) = set(waiting) - known
        else:
            try:
                refuse(objects, names[letter], set())
                outcomes[letter] = True
            except StoreLockedError as error:
                outcomes[letter] = False
                with pytest.raises(StoreLockedError):
                    entered[letter].gen.throw(error)
    assert sum(outcomes.values()) <= 1
    for letter, is_going_on in outcomes.items():
        if is_going_on:
            entered[letter].__exit__(None, None, None)
