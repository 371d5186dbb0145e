"""``config/delayOffset.json``: which entry of each delay level is delivered next.

Law: what the file counts was delivered in the log that it names, and is on the disk there. Offsets
of another log, or lost ones, are not used: the log itself says what was delivered (`delay.copies`).

How derived: ScheduleMessageService.load and persist of 4.9 (spec B18, F13).
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rocketstore.errors import FormatError
from rocketstore.events import get_logger
from rocketstore.format.metadata_json import (
    DELAY_OFFSETS_FILE,
    DelayOffsets,
    decode_table,
    dumps,
    encode_table,
    loads,
)
from rocketstore.storage.files.disk import Disk, system_errors
from rocketstore.storage.files.whole_file import read_with_backup, replace_whole, write_atomically
from rocketstore.tables.positions import Marks, agreed_end

if TYPE_CHECKING:
    from rocketstore.storage.layout import StoreLayout

_decoded: Final = partial(decode_table, table=DelayOffsets)

_log: Final = get_logger(__name__)


class DelayOffsetTable:
    """The file of one store."""

    def __init__(self, layout: StoreLayout, disk: Disk | None = None) -> None:
        self.path = layout.config / DELAY_OFFSETS_FILE
        self._layout = layout
        self._disk = disk or Disk()

    def load(self) -> DelayOffsets:
        """Return what was saved last, without the marks."""
        try:
            table = read_with_backup(self.path, _decoded)
        except FormatError as error:
            _log.error("delay.offsets_lost", path=str(self.path), error=str(error))
            table = None
        if table is None:
            return DelayOffsets()
        agreed = agreed_end(self._layout, table.log_marks or [])
        if agreed is not None:
            _log.warning(
                "delay.offsets_of_another_log", path=str(self.path), agreed_physical_offset=agreed
            )
            return DelayOffsets()
        return msgspec.structs.replace(table, log_marks=None)

    @system_errors("cannot save the offsets of delay levels")
    def save(self, offsets: DelayOffsets, marks: Marks) -> None:
        """Save offsets that count nothing after the end of `marks`."""
        marked = msgspec.structs.replace(offsets, log_marks=marks or None)
        former: dict[str, Any] = {}
        with contextlib.suppress(FormatError):  # what a newer broker keeps there stays
            former = read_with_backup(self.path, loads) or {}
        content = dumps({**former, **msgspec.to_builtins(marked)}).encode()
        write_atomically(self.path, content, disk=self._disk, decode=_decoded)

    def clear(self) -> None:
        """Save that nothing of a log that is still to come is delivered; keep no backup."""
        replace_whole(self.path, encode_table(DelayOffsets()).encode(), self._disk)
