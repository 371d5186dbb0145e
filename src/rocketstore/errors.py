"""Every error that rocketstore raises, in one tree.

Law: expected outcomes are values (``PutResult.status``), damage found by a scan is a value
(``Damage``); what is raised is a surprise. Each error says what happened, where (file, offset),
what was found against what was expected, and what to do next (``hint``).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, ClassVar, Self

if TYPE_CHECKING:
    from enum import Enum


class RocketStoreError(Exception):
    """Base of all errors of this package.

    Parameters
    ----------
    message
        What happened, where, and found against expected.
    hint
        The next thing to try, as an imperative sentence or a command; shown after the message.
    """

    exit_code: ClassVar[int] = 1
    """Exit code of the command line when this error ends a command."""

    retriable: bool = False
    """Whether the same call may succeed later although nothing is changed meanwhile."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}; {self.hint}"

    def __reduce__(self) -> tuple[Any, ...]:
        # A pool of processes breaks where an error of its worker needs more than `args` to be made.
        return _made_again, (type(self), self.args), self.__dict__


def _made_again(kind: type[RocketStoreError], args: tuple[Any, ...]) -> RocketStoreError:
    error = kind.__new__(kind)
    error.args = args
    return error


class ArgumentError(RocketStoreError, TypeError):
    """An argument is not what the signature of its call says; the call has done nothing.

    Attributes
    ----------
    name, expected
        The argument, and what the signature says.
    """

    exit_code = 2

    def __init__(self, name: str, *, expected: str, found: object, call: str = "") -> None:
        place = f"{call}: " if call else ""
        kind = type(found).__name__
        super().__init__(f"{place}{name}: expected {expected}, found {found!r:.60} ({kind})")
        self.name = name
        self.expected = expected


class FormatError(RocketStoreError):
    """Bytes that do not follow their format.

    Attributes
    ----------
    offset
        Position of the offending bytes in the file or buffer that was read.
    field
        Field of the format page.
    expected, found
        What the format wants and what stands there.
    """

    exit_code = 4

    def __init__(
        self,
        message: str,
        *,
        offset: int | None = None,
        field: str | None = None,
        expected: object = None,
        found: object = None,
        hint: str | None = None,
    ) -> None:
        at = "" if offset is None else f" at offset {offset}"
        is_compared = expected is not None or found is not None
        versus = f": expected {expected}, found {found}" if is_compared else ""
        super().__init__(f"{message}{at}{versus}", hint=hint)
        self.offset = offset
        self.field = field
        self.expected = expected
        self.found = found


class TruncatedRecordError(FormatError):
    """Fewer bytes remain than a record says it has."""


class FieldRangeError(FormatError):
    """A length, id or time outside its limits."""


class CompressedBodyError(FormatError):
    """A body that sysFlag calls compressed is no zlib stream, or only the beginning of one."""


class BodyTooLargeError(FormatError, ValueError):
    """A compressed body would inflate to more than the limit."""


class StoreError(RocketStoreError):
    """A problem of a store directory as a whole: a file in it cannot be read or made."""

    exit_code = 3


class NotAStoreError(StoreError):
    """The directory has no usable ``commitlog``."""

    exit_code = 4


class StoreLockedError(StoreError):
    """Another process, or this one, already writes to the store."""

    exit_code = 5
    retriable = True

    def __init__(self, message: str, *, owner_pid: int | None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.owner_pid = owner_pid


class StoreClosedError(StoreError):
    """The store object was closed."""


class StoreForkedError(StoreClosedError):
    """The store object belongs to the parent of this forked process."""


class StoreReadOnlyError(StoreError):
    """A write was attempted on a store that was opened read-only."""

    exit_code = 2


class NotReadableError(StoreError):
    """No pages are returned while the running flag ``NOT_READABLE`` is set."""

    retriable = True


class StoreFullError(StoreError):
    """The file system has no space for a new file."""

    retriable = True


class SystemRefusedError(StoreError, OSError):
    """The system refused a call on a file of the store: no descriptors, no memory, a bad disk.

    Attributes
    ----------
    errno
        The system's reason, as of any `OSError`.
    """

    retriable = True

    def __init__(self, message: str, *, code: int | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.errno = code

    def __reduce__(self) -> tuple[Any, ...]:
        make, args, state = super().__reduce__()
        return make, args, {**state, "errno": self.errno}


class StoreDamagedError(StoreError):
    """The store cannot be opened for writing as it is; a repair is needed."""

    exit_code = 4


class FlushFailedError(StoreError):
    """``fdatasync`` failed: what was not yet on disk may be lost, and the writer stops for good."""

    exit_code = 4


class PutFailedError(StoreError):
    """A put was not answered with ``PUT_OK``; raised by `PutResult.raise_for_status` alone.

    Attributes
    ----------
    status
        The `PutMessageStatus`.
    is_stored
        Whether the message is in the log all the same, so that another put would store it twice.
    retriable
        As `PutResult.retriable`.
    """

    exit_code = 1

    def __init__(
        self, message: str, *, status: Enum, is_stored: bool, retriable: bool, hint: str
    ) -> None:
        super().__init__(message, hint=hint)
        self.status, self.is_stored, self.retriable = status, is_stored, retriable


class RefusedMessageError(StoreError):
    """A message that this store must not accept, and for which 4.9 has no status."""

    exit_code = 1


class InvalidNameError(RefusedMessageError):
    """A topic name or queue id that may not become a directory name."""

    exit_code = 2


class NotFoundError(RocketStoreError):
    """The store is healthy, but has no such topic, queue or message id."""


class ArchiveError(RocketStoreError):
    """An archive that cannot be written to, or that does not belong to the store at hand."""

    exit_code = 3


class ArchiveDamagedError(ArchiveError):
    """Rows or files of an archive are missing, or are not what their checksums say."""

    exit_code = 4


class ConfigError(RocketStoreError):
    """A setting that is unknown, malformed, out of range, or at odds with the store's files."""

    exit_code = 2

    def __init__(
        self, message: str, *, key: str | None = None, value: object = None, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.key = key
        self.value = value


class InvalidFilterError(RocketStoreError):
    """A filter expression, such as tags, that names nothing by which to choose messages."""

    exit_code = 2


class SparkJobError(RocketStoreError):
    """Spark gave a job up for a reason of its own: a killed worker, no memory, no disk space."""

    exit_code = 3
    retriable = True


class RemotingError(RocketStoreError):
    """A connection to a name server, broker or client failed, ended, or was silent for too long."""

    exit_code = 3
    retriable = True


class ResponseError(RemotingError):
    """The other side refused a request.

    Attributes
    ----------
    code
        Its `rocketstore.remoting.ResponseCode`, or a number that it does not list.
    remark
        Its explanation.
    """

    retriable = False

    def __init__(self, message: str, *, code: int, remark: str | None) -> None:
        super().__init__(message)
        self.code = code
        self.remark = remark


class UnsupportedEnvironmentError(RocketStoreError):
    """Something outside this package is missing or of a version that does not work."""

    exit_code = 3

    @classmethod
    def not_installed(cls, module: str | None, extra: str, instead: str = "") -> Self:
        """Return the error that a package of an extra is missing; `instead` is another way out."""
        package, _, _ = str(module).partition(".")
        if package == "datasketches" and sys.version_info >= (3, 14):
            instead = " with CPython 3.11 to 3.13: for later ones datasketches has no wheel"
        return cls(
            f"{package} is not installed", hint=f"pip install 'rocketstore[{extra}]'{instead}"
        )
