"""A query with bodies over a store on an object store: a server of the tests, on the loopback.

The server holds the log in memory, in a process of its own, of which the figure says how much CPU
it took; it is part of the whole tree.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from bench.pipeline.read_bodies import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable

SERVER: Final = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from support.s3_server import running_s3
with running_s3() as server:
    server.put_tree(Path(sys.argv[2]), "store/commitlog")
    print(server.uri("store"), flush=True)
    sys.stdin.read()
"""


def prepare(spark: Any, store: Path, scratch: Path) -> Callable[[], object]:
    """Return the query; the server ends with this process."""
    del scratch
    tests = Path(__file__).resolve().parents[2] / "tests"
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(tests), str(store / "commitlog")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    uri = server.stdout.readline().strip()

    def query() -> dict[str, float]:
        before = _cpu_s(server.pid)
        frame = spark.read.format("rocketstore").option("columns", COLUMNS).load(uri)
        frame.write.format("noop").mode("overwrite").save()
        return {"CPU seconds of the server": round(_cpu_s(server.pid) - before, 2)}

    return query


def _cpu_s(process: int) -> float:
    times = psutil.Process(process).cpu_times()
    return float(times.user + times.system)
