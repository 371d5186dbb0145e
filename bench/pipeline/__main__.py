"""``python -m bench.pipeline audit --log-gib 4``: one or more scenarios on one store."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import machine
from bench.pipeline import (
    Figure,
    build_store,
    in_pool,
    measure,
    scan_alone,
    scan_split,
    scenario,
    scenario_names,
    splits_of,
    written_bytes,
)
from rocketstore.pipeline import session
from rocketstore.units import GiB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RESULTS = Path(__file__).resolve().parents[1] / "results"


def main() -> None:
    given = _arguments()
    if given.list:
        print("\n".join(scenario_names()))
        return
    directory = Path(tempfile.mkdtemp(prefix="rocketstore-bench-", dir=given.directory))
    try:
        store = given.store or directory / "store"
        if given.store is None:
            build_store(store, int(given.log_gib * GiB), body_bytes=given.body)
        figures = []
        for figure in _figures(given, store, directory / "scratch"):
            figures.append(figure)
            print(figure.row(), flush=True)
        if given.save is not None:
            _save(given, figures, directory)
    finally:
        shutil.rmtree(directory)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.pipeline", description=__doc__)
    parser.add_argument("scenarios", nargs="*", help="default: all")
    parser.add_argument("--list", action="store_true", help="print the names of the scenarios")
    parser.add_argument("--log-gib", type=float, default=4.0, help="bytes of log to make")
    parser.add_argument("--body", type=int, default=1024, help="bytes of a message's body")
    parser.add_argument("--store", type=Path, help="a store to read instead of making one")
    parser.add_argument("--repeats", type=int, default=3, help="runs that count, after one")
    parser.add_argument("--directory", help="where the store is made; default: temporary")
    parser.add_argument("--cores", type=int, help="default: those this process may run on")
    parser.add_argument("--without-spark", action="store_true", help="only what needs no Spark")
    parser.add_argument("--save", metavar="NAME", help="write bench/results/NAME.json")
    return parser.parse_args()


def _figures(given: argparse.Namespace, store: Path, scratch: Path) -> Iterator[Figure]:
    cores = given.cores or len(os.sched_getaffinity(0))
    log_bytes = written_bytes(store)
    splits = splits_of(store)
    print(f"{log_bytes:,} bytes of log, {len(splits)} splits, {cores} cores")

    def clear() -> None:
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()

    def figure(name: str, job: Callable[[], object]) -> Figure:
        return measure(name, job, log_bytes=log_bytes, repeats=given.repeats, clear=clear)

    yield figure("scan alone", lambda: scan_alone(splits))
    yield figure("scan in a pool", lambda: in_pool(scan_split, splits, cores))
    modules = {name: scenario(name) for name in given.scenarios or scenario_names()}
    for name, module in modules.items():
        if hasattr(module, "prepare_plain"):
            yield figure(f"{name} in a pool", module.prepare_plain(store, scratch, cores))
    if given.without_spark:
        return
    began = time.perf_counter()
    spark = session(f"local[{cores}]")
    spark.sparkContext.setLogLevel("ERROR")
    print(f"session started in {time.perf_counter() - began:.1f} s")
    try:
        for name, module in modules.items():
            yield figure(f"{name} on Spark", module.prepare(spark, store, scratch))
    finally:
        spark.stop()


def _save(given: argparse.Namespace, figures: list[Figure], directory: Path) -> None:
    report: dict[str, Any] = {
        "machine": machine.describe(directory),
        "versions": machine.versions("java"),
        "commit": machine.commit(),
        "bodyBytes": given.body,
        "figures": [figure.to_dict() for figure in figures],
    }
    target = RESULTS / f"{given.save}.json"
    target.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"saved {target}")


if __name__ == "__main__":
    main()
