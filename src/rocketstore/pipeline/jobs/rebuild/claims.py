"""Which run rebuilds a store on an object store: an object that says who, seen by the others.

    rebuild-claims/<id>.json      a run that has begun, and has not ended or was killed

A run first writes its own claim and then lists all. Where a listing shows what was written before
(S3 and its like), of two runs at least the later one sees the other, and withdraws; both may. So
two never go on together. A claim of a process that has ended, as this machine can tell, counts for
nothing; one of another machine counts until somebody says that its run has ended (`take_over`).

Law: nothing below the store is written or removed before the claim was made, and nothing is put in
place when it is gone.

How derived: decision 0017.
"""

from __future__ import annotations

import contextlib
import os
import socket
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from rocketstore.errors import StoreError, StoreLockedError
from rocketstore.events import get_logger
from rocketstore.pipeline.process import started

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rocketstore.pipeline.objects import ObjectStore

_log: Final = get_logger(__name__)

CLAIMS_DIRECTORY: Final = "rebuild-claims"

_PROC: Final = Path("/proc")
_running: Final[set[str]] = set()
"""Claims of runs in this process that have not ended."""


class Owner(msgspec.Struct, frozen=True):
    """The process that made a claim.

    Attributes
    ----------
    machine
        Boot and process namespace, in which `pid` means something; empty where nothing tells.
    began
        When the process began, in ticks since boot: a pid is given again.
    since
        When the claim was made, by that machine's clock; for people.
    """

    host: str
    machine: str
    pid: int
    began: str
    since: str

    def has_ended(self, claim: str) -> bool:
        """Whether it is known that this run goes on no more."""
        if not self.machine or self.machine != _machine():
            return False
        if self.pid == os.getpid() and self.began == _began(self.pid):
            return claim not in _running
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:  # somebody else's, so it runs
            pass
        began = _began(self.pid)
        return bool(began) and began != self.began

    def __str__(self) -> str:
        """Return it for an error."""
        return f"process {self.pid} on {self.host}, since {self.since}"


class Claim:
    """A claim that was made."""

    def __init__(self, objects: ObjectStore, name: str) -> None:
        self._objects = objects
        self._name = name

    def check(self) -> None:
        """Raise where somebody has taken the store over.

        Raises
        ------
        StoreLockedError
            The claim is gone.
        """
        if self._name not in _listed(self._objects):
            raise StoreLockedError(
                f"{self._objects.location} was taken over by another rebuild; nothing was replaced",
                owner_pid=None,
                hint="let that one end; each needs to know that no other runs",
            )


@contextlib.contextmanager
def claimed(objects: ObjectStore, *, take_over: bool, now_ms: int) -> Iterator[Claim]:
    """Claim a store for the length of a ``with`` block.

    Parameters
    ----------
    take_over
        The caller says that the runs whose claims are there already have ended.
    now_ms
        The time, for the claim.

    Raises
    ------
    StoreLockedError
        Another run has it.
    """
    before = _listed(objects) if take_over else set()
    name = f"{uuid.uuid4().hex}.json"
    path = _path(objects, name)
    _running.add(name)
    try:
        objects.put(path, msgspec.json.encode(_owner(now_ms)))
        try:
            _refuse_others(objects, name, before)
            yield Claim(objects, name)
        finally:
            try:
                objects.remove(path)
            except StoreError:
                _log.warning("rebuild.claim_left", path=path)
    finally:
        _running.discard(name)


def _refuse_others(objects: ObjectStore, own: str, ended: set[str]) -> None:
    for name in sorted(_listed(objects) - {own}):
        path = _path(objects, name)
        owner = _read(objects, path)
        if owner is None:
            continue
        if name in ended or (isinstance(owner, Owner) and owner.has_ended(name)):
            objects.remove(path)
            _log.warning("rebuild.claim_swept", path=path, owner=str(owner))
            continue
        raise StoreLockedError(
            f"{objects.location} is being rebuilt by {owner} ({path})",
            owner_pid=owner.pid if isinstance(owner, Owner) else None,
            hint="wait for it; if it was killed, and its Spark application has ended too: "
            "take_over=True, --take-over",
        )


def _read(objects: ObjectStore, path: str) -> Owner | str | None:
    """Return who made a claim; None where it has gone meanwhile."""
    try:
        content = objects.content(path)
    except FileNotFoundError:
        return None
    if content is None:
        return None
    try:
        return msgspec.json.decode(content, type=Owner)
    except msgspec.MsgspecError:
        return "somebody whose claim cannot be read"


def _listed(objects: ObjectStore) -> set[str]:
    return set(objects.sizes(f"{objects.root}/{CLAIMS_DIRECTORY}"))


def _path(objects: ObjectStore, name: str) -> str:
    return f"{objects.root}/{CLAIMS_DIRECTORY}/{name}"


def _owner(now_ms: int) -> Owner:
    since = datetime.fromtimestamp(now_ms // 1000, UTC).isoformat()
    pid = os.getpid()
    return Owner(socket.gethostname(), _machine(), pid, _began(pid), since)


def _machine() -> str:
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot}/{(_PROC / 'self/ns/pid').readlink()}"
    except OSError:
        return ""


def _began(pid: int) -> str:
    return str(started(pid) or "")
