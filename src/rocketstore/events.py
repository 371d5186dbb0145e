"""Lines with fields that a store logs: through ``logging``, below the logger ``rocketstore``.

Law: nothing global is configured. The host switches these lines off, formats and routes them as it
does with any library's: ``logging.getLogger("rocketstore")``. Unless it does, nothing is printed.
"""

import logging
from collections.abc import MutableMapping
from typing import Any, Final

ROOT: Final = logging.getLogger("rocketstore")
ROOT.addHandler(logging.NullHandler())

LONGEST: Final = 4000
"""Characters of a field that a line shows."""

_OF_LOGGING: Final = ("exc_info", "stack_info", "stacklevel")

_UNFORESEEN: Final = "the traceback says why; report it where the cause is not on this machine"
"""What to do about a line with a traceback, unless the line says it."""

_SLOW_DISK: Final = "see what else uses this disk, and whether it is failing (iostat, dmesg)"
_VERIFY: Final = "no get finds it: `rocketstore store verify` says why, `store scan` shows it"

NEXT: Final = {
    "batch_queue.refused": _VERIFY,
    "broker.event_not_stored": "only this event for administrators is lost; clear its reason",
    "broker.failed": "the broker goes on; if files are short, raise their limit (ulimit -n)",
    "broker.no_vip_port": "free the port two below, or switch off vipChannelEnabled in old clients",
    "broker.not_registered": "tried again every period; see that it runs and is reached from here",
    "broker.renamed": "if it comes again and again, two brokers tell this address: set brokerIP1",
    "broker.replaced": "if it comes again and again, two brokers have this name: rename one",
    "broker.silent": "clients are not sent there any more; see whether that broker runs",
    "consume.offset_moved": "the group goes on at next_offset; if too old, raise fileReservedTime",
    "consumer_offsets.not_saved": "what was consumed since the last save is consumed again",
    "consumer_offsets.set_back": "nothing is to be done: the group goes on with what the log has",
    "delay.not_saved": "the next start finds in the log what was delivered",
    "delay.offsets_lost": "the log itself says what was delivered",
    "delay.offsets_of_another_log": "the log itself says what was delivered",
    "descriptors.short": "raise the limit of open files (ulimit -n); until then puts are slower",
    "disk.full": "puts are refused until there is room",
    "dispatch.behind_retention": "what was deleted is in no queue; raise fileReservedTime",
    "dispatch.gap": "gets step over it: `rocketstore store verify` lists what is missing",
    "dispatch.no_extra_queues": "only its first queue has it; mend the program that puts it",
    "dispatch.refused": f"{_VERIFY}; one line for 50,000 of them",
    "file.forced": "its room is free once its reader lets go of it; let readers be quicker",
    "file.made_elsewhere": "said once; see whether that disk is full, or mounted read-only",
    "file.not_locked": "it may be swapped out: raise the limit of locked memory (ulimit -l)",
    "file.not_preallocated": "a put makes it, which takes longer; see how full the disk is",
    "file.sparse": "keep room free on the disk: a write into the file may find none",
    "filter.failed": "the message counts as wanted; mend the predicate of the group",
    "known_ends.no_room": "make room; until then a lost queue file may stay unnoticed",
    "log.commit_slow": _SLOW_DISK,
    "log.damage": "left out, as option damage asks; `rocketstore store verify` says what mends it",
    "log.damage_skipped": "left out, as option damage asks; table damage lists the ranges",
    "log.file_gone": "left out, as option failOnDataLoss asks; to keep files: fileReservedTime",
    "log.flush_slow": _SLOW_DISK,
    "log.taken_over": "it is this store's from now on; do not open the other one with it",
    "memory.topic_ignored": "it is kept on the disk; take `memory` out of config/topics.json",
    "metrics.failed": "scrapes may fail; if files are short, raise their limit (ulimit -n)",
    "plan.reads_all": "the read takes longer; if a queue is at fault: `rocketstore queue rebuild`",
    "pool.low": "raise transientStorePoolSize; the disk does not keep up with the puts",
    "pool.not_locked": "they may be swapped out: raise the limit of locked memory (ulimit -l)",
    "put.refused": "puts are taken again once the reason is gone; one line for 50,000 of them",
    "put.slow": _SLOW_DISK,
    "queue_extension.failed": "filters look at the message itself; see how full the disk is",
    "rebuild.swept": "nothing is to be done: run the rebuild that was interrupted again",
    "replication.slave_refused": "mend what the error names; the slave tries again by itself",
    "replication.too_many_slaves": "end slaves that are not needed; this one tries again",
    "retention.nothing_to_delete": "make room, or lower fileReservedTime, before the disk is full",
    "scrub.map_unreadable": "nothing is to be done: damage is looked for again",
    "scrub.map_unwritten": "tried again at the next file; see how full the disk is",
    "sink.batch_known": "not put again",
    "sink.sweep_failed": "`rocketstore pipeline sweep` removes what is left",
    "spark.environment": "more columns are read than a query needs; report this Spark's version",
    "store.abort_stays": "nothing is to be done: the next opening checks more of the store",
    "store.close_incomplete": "the next open makes the rest",
    "store.newer_part": "it can only be read; a broker of 5.x writes to it",
    "stream.damage": "it goes on with what the log has; to mend it: `rocketstore queue rebuild`",
    "stream.fillers": "nothing is to be done: the loss was told when the queue was repaired",
    "stream.loss": 'to end at a loss: option("failOnDataLoss", "true")',
    "table.broken": "move a directory, pipe or link away; a file is replaced by the next change",
    "transaction.discarded": "it is in TRANS_CHECK_MAX_TIME_TOPIC; see why no producer answers",
    "transaction.not_read": "tried again when a transaction is begun or ended",
    "transaction.not_settled": "the next open settles it, by reading the log",
}
"""What happens next, or what to do, of each line of trouble that does not say it."""


class EventLogger(logging.LoggerAdapter[logging.Logger]):
    """Logs an event and its fields: ``_log.warning("put.slow", took_ms=700)``.

    The line reads ``put.slow took_ms=700``; the record carries both apart, as ``record.event`` and
    ``record.fields``, for formatters that write JSON.
    """

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - the name that logging gave it
        """Whether the level is logged; ``disabled`` of ``rocketstore`` silences all below."""
        return not ROOT.disabled and super().isEnabledFor(level)

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[str, MutableMapping[str, Any]]:
        """Put the fields into the line, and beside it."""
        passed = {name: kwargs.pop(name) for name in _OF_LOGGING if name in kwargs}
        if passed.get("exc_info"):
            kwargs.setdefault("hint", _UNFORESEEN)
        if msg in NEXT and "hint" not in kwargs:
            kwargs.setdefault("next", NEXT[msg])
        fields = dict(kwargs)
        text = " ".join([msg, *(f"{name}={_shown(value)}" for name, value in fields.items())])
        return text, {**passed, "extra": {"event": msg, "fields": fields}}


def get_logger(name: str) -> EventLogger:
    """Return the logger of a module: ``get_logger(__name__)``."""
    return EventLogger(logging.getLogger(name))


def _shown(value: object) -> str:
    text = str(value)
    if len(text) > LONGEST:  # the name of a group that a client made up, say
        text = f"{text[:LONGEST]}… ({len(text)} characters)"
    return text if text.isprintable() and text and not set(text) & set(" \"'=") else repr(text)
