"""What a put looks at before it appends: plain Python, or compiled where it was.

The compiled twin (``_put.c``) is part of the optional module of ``storage.log.append_state``. It
has the same attributes, and does the whole of a put that finds nothing to refuse and nothing to
wait for; every other one it hands to `put_plainly` or `put_prepared_plainly`, which say why.

Law: both leave the same bytes, and return or raise the same (property tests).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rocketstore.storage.log.append_state import IS_COMPILED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TypeAlias

    from rocketstore.message import Message
    from rocketstore.storage.log.commit_log import CommitLog
    from rocketstore.storage.results import PutMessageStatus
    from rocketstore.storage.running_flags import RunningFlags

    AppendedBatch: TypeAlias = tuple[int, int, int, int, int, bytes]
    """Physical offset, bytes, queue offset, store time in ms, messages, and the size of each record
    as a 64-bit number of this machine."""


class PlainPutState:
    """Base of `StoreWriter`.

    Parameters
    ----------
    log
        Where messages go.
    flags
        Why puts are not taken at the moment.
    born_hosts
        Known hosts: as records hold them, and the host bits of sysFlag that go with them.
    message_type, prepared_type, result_type, done_status
        Of a put that is done at once.
    longest_body
        Bytes of a body that needs no look at its size.
    host_bits
        Host bits of this store's own address.
    is_immediate
        Whether a put is done when it is appended.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - positional like its compiled twin
        self,
        log: CommitLog,
        flags: RunningFlags,
        born_hosts: dict[str, tuple[bytes, int]],
        message_type: type,
        prepared_type: type,
        result_type: type,
        done_status: PutMessageStatus,
        longest_body: int,
        host_bits: int,
        is_immediate: bool,  # noqa: FBT001
    ) -> None:
        del message_type, prepared_type, result_type, done_status, longest_body, host_bits
        del is_immediate
        self._log = log
        self._cells = log.cells
        self._flags = flags
        self._born_hosts = born_hosts
        self._never = False

    def append_messages(
        self, messages: Sequence[Message], queue_id: int, longest: int
    ) -> AppendedBatch | None:
        """Append messages of one topic; None where they must be looked at one by one, or refused.

        Parameters
        ----------
        longest
            Most bytes that the batch may have, as a client would encode it.
        """
        del self, messages, queue_id, longest
        return None

    def append_encoded(  # noqa: PLR0913, PLR0917 - the fields of a send request
        self,
        topic: str,
        queue_id: int,
        batch: bytes | bytearray | memoryview,
        more: Mapping[str, str] | bytes,
        sys_flag: int,
        born_timestamp_ms: int | None,
        born_host: str,
        reconsume_times: int,
        longest: int,
    ) -> AppendedBatch | None:
        """Append a client's batch; None where it must be looked at closer, or refused.

        Parameters
        ----------
        more
            Properties that are added to those of every message.
        longest
            Most bytes that the batch may have.
        """
        del self, topic, queue_id, batch, more, sys_flag, born_timestamp_ms, born_host
        del reconsume_times, longest
        return None


def _chosen() -> Any:
    """Return the compiled class, or the plain one where there is none."""
    if not IS_COMPILED:
        return PlainPutState
    from rocketstore.storage.log import _append  # noqa: PLC0415 - optional

    return _append.PutState


if TYPE_CHECKING:
    PutState = PlainPutState
else:
    PutState = _chosen()
