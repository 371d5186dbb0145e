"""Fill a store until its disk is full, in a process of its own: a SIGBUS would end it.

Usage: disk_filler.py STORE ASYNC_FLUSH|SYNC_FLUSH RUN. Prints a JSON line per put that was
acknowledged, then one that says how it ended.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


from rocketstore import FlushFailedError, MessageStore
from rocketstore.storage.results import PutMessageStatus
from support.fault_workload import small_files, step_of

REFUSALS = 25
"""Puts that are refused before the filler gives up: smaller ones may still fit."""

MOST_STEPS = 20_000


def main() -> None:
    root, flush, run = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    config = small_files(flush, flush_interval_commit_log=5, flush_interval_consume_queue=5)
    store = MessageStore.open(root, config)
    refused: list[str] = []
    step = 0
    while len(refused) < REFUSALS and step < MOST_STEPS:
        step += 1
        result = step_of(run, 0, step).do(store)
        if result.status is PutMessageStatus.PUT_OK:
            line = {"step": step, "at": result.record_offsets, "offset": result.queue_offset}
            print(json.dumps(line), flush=True)  # noqa: T201 - what the test reads
        else:
            refused.append(f"{result.status.value}: {result.detail}")
    closed = "in order"
    try:
        store.close()
    except FlushFailedError as error:
        closed = str(error)
    print(json.dumps({"steps": step, "refused": refused, "closed": closed}))  # noqa: T201


if __name__ == "__main__":
    main()
