"""Data that was there when its offset was saved and is not there now: an error, or counted.

Law: no loss is silent. ``failOnDataLoss`` decides between an error and a warning that says how much
is gone and where the stream goes on.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from rocketstore.errors import StoreError
from rocketstore.events import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocketstore.pipeline.options import ReadOptions

Given = ParamSpec("Given")
Answer = TypeVar("Answer")

_log = get_logger(__name__)

HINT: Final = 'to go on with what is there: option("failOnDataLoss", "false")'


class Losses:
    """What one stream has lost.

    Attributes
    ----------
    count
        Losses that were accepted so far.
    """

    def __init__(self, options: ReadOptions) -> None:
        self.is_error = options.fail_on_data_loss
        self.count = 0
        self.reported: set[str] = set()

    def report(self, what: str, then: str) -> None:
        """Note a loss.

        Parameters
        ----------
        what
            Where, expected and found.
        then
            Where the stream goes on when the loss is accepted.

        Raises
        ------
        StoreError
            `failOnDataLoss` is set.
        """
        if self.is_error:
            raise StoreError(f"data loss: {what}", hint=HINT)
        if what in self.reported:
            # Met again by the next batch, or by the plan of the same one.
            return
        self.reported.add(what)
        self.count += 1
        _log.warning("data loss %d of this stream: %s; %s", self.count, what, then)


def once_more_when_a_file_went(
    method: Callable[Given, Answer],
) -> Callable[Given, Answer]:
    """Ask again when retention deletes a file between being listed and being opened.

    The second answer is about the files that are there then; what the stream has lost, it says.
    """

    @functools.wraps(method)
    def asked(*args: Given.args, **kwargs: Given.kwargs) -> Answer:
        try:
            return method(*args, **kwargs)
        except StoreError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
        return method(*args, **kwargs)

    return asked
