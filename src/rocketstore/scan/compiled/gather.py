"""Compiled: copy the records of queue entries into one buffer, as a pull response carries them.

One call serves one page out of one CommitLog file: it decides entry by entry as
``storage.reading.get_page`` does, compares each record with its entry, and copies. Whatever needs
more than the bytes at hand (another file, a record of another queue) ends the call; Python deals
with that entry and calls again.

Law: nothing is read outside ``log[:readable]`` and nothing is copied that the walk would not take
for a record, or whose topic and queue are not the ones asked for. Body checksums are not computed
here: a consumer compares them.

Source: DefaultMessageStore.getMessage of 4.9 (spec B13).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from rocketstore.format.record import FIXED_SIZE
from rocketstore.scan.columns import StopReason
from rocketstore.scan.compiled import BYTES, NUMBERS, WRITABLE_BYTES, inner, kernel
from rocketstore.scan.compiled.memory import (
    copy_bytes,
    load_i32,
    load_i64,
    load_u8,
    load_u32,
)
from rocketstore.scan.compiled.walk import (
    check_record,
    find_value_end,
    topic_place,
    v6_extra_bytes,
)

_ENTRY_SIZE = 20
_FILLER_SIZE = 0x7FFFFFFF
_MAX_EXT_ADDRESS = -(2**31) - 1
_LOW_32_BITS = 0xFFFFFFFF

_INTACT = int(StopReason.END)

# PlanColumn, GatherStop and GatherView as plain numbers, which Numba freezes.
_QUEUE_ID, _TOPIC_SIZE = 0, 1
_MEMORY_BYTES, _MEMORY_COUNT, _DISK_BYTES, _DISK_COUNT = 2, 3, 4, 5
_TAG_COUNT, _TAGS = 6, 7
_END, _FULL, _ELSEWHERE, _DOUBTFUL, _NO_ROOM = 0, 1, 2, 3, 4
_NONE, _LOST, _UNWANTED = 0, 1, 2
_OTHERS, _TAKE = 3, 4
"""Further verdicts on a record: another queue's; wanted."""


_PREFETCH_ENTRIES = 8
_PREFETCH_BYTES = 1280
_CACHE_LINE = 64


@intrinsic
def _prefetch(_typing: Any, buffer: Any, position: Any) -> Any:  # noqa: ARG001 - numba reads names
    """``_prefetch(buffer, position)``: have a cache line fetched; any address is harmless."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        pointer = builder.gep(array.data, [arguments[1]])
        flag = ir.IntType(32)
        hint = ir.FunctionType(ir.VoidType(), [pointer.type, flag, flag, flag])
        function = builder.module.globals.get("llvm.prefetch.p0i8")
        if function is None:
            function = ir.Function(builder.module, hint, "llvm.prefetch.p0i8")
        builder.call(function, [pointer, flag(0), flag(3), flag(1)])
        return context.get_dummy_value()

    return types.none(buffer, types.int64), codegen


@inner
def _prefetch_record(log: Any, base: Any, entries: Any, entry: Any) -> None:
    """Have the start of an entry's record fetched while the records before it are copied."""
    at = load_i64(entries, entry * _ENTRY_SIZE) - base
    size = min(load_i32(entries, entry * _ENTRY_SIZE + 8), _PREFETCH_BYTES)
    if 0 <= at < log.shape[0]:
        for line in range(0, size, _CACHE_LINE):
            _prefetch(log, at + line)  # type: ignore[call-arg]


@inner
def texts_equal(first: Any, first_at: Any, second: Any, second_at: Any, size: Any) -> Any:
    """Return whether two runs of bytes are the same; both lie inside their arrays."""
    for i in range(size):  # noqa: SIM110 - Numba compiles no generator
        if load_u8(first, first_at + i) != load_u8(second, second_at + i):
            return False
    return True


@inner
def topic_of(log: Any, at: Any) -> Any:
    """Return place and size of the topic of a record that `check_record` found intact."""
    born_extra, store_extra = v6_extra_bytes(load_u32(log, at + 36))
    body_at = at + 88 + born_extra + store_extra
    length_at = body_at + load_i32(log, body_at - 4)
    size, topic_at = topic_place(log, length_at, load_u32(log, at + 4))
    return topic_at, size


@inner
def _may_match(plan: Any, code: Any) -> Any:
    """Return whether an entry's tags code is that of a wanted tag, or says nothing about tags."""
    low = code & _LOW_32_BITS
    for n in range(plan[_TAG_COUNT]):
        if plan[_TAGS + 3 * n] == low:
            return True
    return code <= _MAX_EXT_ADDRESS


@inner
def _tags_match(log: Any, properties_at: Any, stop: Any, plan: Any, names: Any) -> Any:
    """Return whether the value of the last ``TAGS`` property is a wanted tag."""
    value_at = -1
    value_size = 0
    at = properties_at
    while at < stop:
        end = find_value_end(log, at, stop)
        # "TAGS" and 0x01, and at least one byte of value
        if end - at >= 6 and load_u32(log, at) == 0x54414753 and load_u8(log, at + 4) == 1:
            value_at = at + 5
            value_size = end - value_at
        at = end + 1
    if value_at < 0:
        return False
    for n in range(plan[_TAG_COUNT]):
        size = plan[_TAGS + 3 * n + 2]
        tag_at = plan[_TAGS + 3 * n + 1]
        if size == value_size and texts_equal(log, value_at, names, tag_at, size):
            return True
    return False


@inner
def _is_full(plan: Any, count: Any, written: Any, size: Any, is_in_disk: Any) -> Any:
    if is_in_disk:
        return written + size > plan[_DISK_BYTES] or count >= plan[_DISK_COUNT]
    return written + size > plan[_MEMORY_BYTES] or count >= plan[_MEMORY_COUNT]


@inner
def _verdict(log: Any, at: Any, base: Any, readable: Any, size: Any, plan: Any, names: Any) -> Any:
    """Judge the record that an entry says stands at `at` with a length of `size`."""
    if size < FIXED_SIZE or at + size > readable or load_i32(log, at) != size:
        return _LOST
    if check_record(log, at, base, readable, check_crc=False) != _INTACT:
        return _LOST
    topic_at, topic_size = topic_of(log, at)
    if load_i32(log, at + 12) != plan[_QUEUE_ID] or topic_size != plan[_TOPIC_SIZE]:
        return _OTHERS
    if not texts_equal(log, topic_at, names, 0, topic_size):
        return _OTHERS
    properties_at = topic_at + topic_size + 2
    if plan[_TAG_COUNT] > 0 and not _tags_match(log, properties_at, at + size, plan, names):
        return _UNWANTED
    return _TAKE


@kernel(
    types.UniTuple(types.int64, 6)(  # type: ignore[no-untyped-call]
        BYTES, types.int64, types.int64, types.int64,
        BYTES, types.int64, types.int64,
        NUMBERS, BYTES, types.int64, types.int64,
        WRITABLE_BYTES, types.int64, types.int64,
    )
)  # fmt: skip
def gather(
    log: Any, base: Any, readable: Any, log_min: Any,
    entries: Any, first: Any, stop: Any,
    plan: Any, names: Any, max_messages: Any, in_disk_below: Any,
    out: Any, count: Any, written: Any,
) -> Any:  # fmt: skip
    """Copy the wanted records of the entries ``first`` to ``stop`` to ``out[written:]``.

    Parameters
    ----------
    log
        One CommitLog file, whose first byte has the physical offset `base`; `readable` bytes of it
        may be read.
    log_min
        Records below this offset have expired.
    entries
        Queue entries; entry n stands at byte 20 n.
    plan, names
        See ``scan.gather_plan``.
    max_messages
        Most records of the page.
    in_disk_below
        Records below this offset count as being on disk only.
    out
        The page so far holds `count` records and `written` bytes.

    Returns
    -------
    tuple
        ``GatherStop``, the entry it stopped at, count, written, how many entries were stepped over
        as lost, and the ``GatherView`` of the last entry that gave nothing while nothing was found.
    """
    skipped = 0
    view = _NONE
    readable = min(readable, log.shape[0])
    stop = min(stop, entries.shape[0] // _ENTRY_SIZE)
    if first < 0:
        return _END, first, count, written, skipped, view
    for entry in range(first, min(stop, first + _PREFETCH_ENTRIES)):
        _prefetch_record(log, base, entries, entry)
    for entry in range(first, stop):
        if entry + _PREFETCH_ENTRIES < stop:
            _prefetch_record(log, base, entries, entry + _PREFETCH_ENTRIES)
        if count > 0 and count >= max_messages:
            return _FULL, entry, count, written, skipped, view
        entry_at = entry * _ENTRY_SIZE
        offset = load_i64(entries, entry_at)
        size = load_i32(entries, entry_at + 8)
        code = load_i64(entries, entry_at + 12)
        if size <= 0 or (size == _FILLER_SIZE and offset == 0):
            skipped += 1
            view = _LOST
            continue
        if count > 0 and _is_full(plan, count, written, size, offset < in_disk_below):
            return _FULL, entry, count, written, skipped, view
        if plan[_TAG_COUNT] > 0 and not _may_match(plan, code):
            view = _UNWANTED
            continue
        if offset < log_min:
            skipped += 1
            view = _LOST
            continue
        at = offset - base
        if at < 0 or at >= log.shape[0]:
            return _ELSEWHERE, entry, count, written, skipped, view
        verdict = _verdict(log, at, base, readable, size, plan, names)
        if verdict == _OTHERS:
            return _DOUBTFUL, entry, count, written, skipped, view
        if verdict != _TAKE:
            skipped += verdict == _LOST
            view = verdict
            continue
        if size > out.shape[0] - written:
            return _NO_ROOM, entry, count, written, skipped, view
        copy_bytes(out, written, log, at, size)
        written += size
        count += 1
    return _END, max(first, stop), count, written, skipped, view
