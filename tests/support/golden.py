"""Golden stores: real directories that Apache RocketMQ 4.9.3 wrote, with what it reads from them.

``tests/golden/stores/README.md`` says how they came about.
"""

import functools
import io
import json
import lzma
import tarfile
from pathlib import Path
from typing import Any

from support.made_once import new_directory

GOLDEN_ROOT = Path(__file__).resolve().parents[1] / "golden" / "stores"

CASES = (
    "basic", "batch", "broker", "cqext", "delay", "expired", "ipv6", "multidispatch",
    "transactions",
)  # fmt: skip
CRASH_CASES = (
    "bitflip_middle_last_file", "checkpoint_zero", "cq_behind", "cq_deleted", "garbage_tail",
    "index_deleted", "noabort_torn", "plain", "torn_body_crc", "torn_half_zero",
)  # fmt: skip


@functools.cache
def _unpacked(name: str) -> Path:
    target = new_directory()
    with lzma.open(GOLDEN_ROOT / f"{name}.tar.xz") as stream:
        data = stream.read()
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in tar.getmembers():
            _make_plain_if_not_sparse(member, data)
        tar.extractall(target, filter="data")
    return target


def _make_plain_if_not_sparse(member: tarfile.TarInfo, data: bytes) -> None:
    """Undo a header that says "sparse" although the whole file follows, without a map of holes.

    Some archives hold such headers; tarfile would extract these files as empty ones.
    """
    if member.type == tarfile.GNUTYPE_SPARSE and member.size == 0:
        header = data[member.offset_data - tarfile.BLOCKSIZE : member.offset_data]
        member.size = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape").size
        member.type = tarfile.REGTYPE
        member.sparse = None  # type: ignore[assignment]


def golden_case(name: str) -> Path:
    """Return the unpacked directory of a case; shared by all tests, so copy before writing."""
    return _unpacked(name) / name


def golden_segments() -> list[Path]:
    """Return the log files of cases that differ in their records."""
    return [
        path
        for case in ("basic", "batch", "ipv6", "transactions", "delay", "crash")
        for path in sorted(golden_case(case).glob("**/commitlog/*"))
    ]


def manifest(directory: Path) -> dict[str, Any]:
    """Return the manifest that lies in a case's directory."""
    loaded: dict[str, Any] = json.loads((directory / "manifest.json").read_text())
    return loaded
