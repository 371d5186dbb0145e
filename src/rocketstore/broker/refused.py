"""What is refused, before the store is asked or by the store: code and remark of the reply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocketstore.broker.codes import BrokerAnswer
from rocketstore.errors import FlushFailedError, StoreClosedError
from rocketstore.remoting import requests
from rocketstore.remoting.codes import ResponseCode
from rocketstore.remoting.command import Command, reply

if TYPE_CHECKING:
    from rocketstore.remoting.requests import Call

SEE: Final = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."
"""How remarks of 4.9 end (FAQUrl.suggestTodo)."""


class Refused(Exception):  # noqa: N818 - it becomes a reply
    """A request that a check ended, or the store; `why` is for the log: a remark is 4.9's."""

    def __init__(self, code: int, remark: str, why: str | None = None) -> None:
        super().__init__(remark)
        self.code, self.remark, self.why = code, remark, why or remark


def forbidden(what: str) -> Refused:
    """Return the refusal of what the broker, or a topic, does not grant."""
    return Refused(ResponseCode.NO_PERMISSION, f"{what} is forbidden")


def refusal(refused: Refused, call: Call, fields: dict[str, str] | None = None) -> Command:
    """Return the reply to a request that a check ended, and log what was refused to whom."""
    requests.note_refused(call, refused.why)
    return reply(refused.code, refused.remark, fields=fields)


def failure(error: BaseException, call: Call) -> Command:
    """Return what is answered where a handler raised: a store that takes nothing has its code."""
    if isinstance(error, StoreClosedError | FlushFailedError):
        error = Refused(BrokerAnswer.SERVICE_NOT_AVAILABLE, str(error))
    if isinstance(error, Refused):
        return refusal(error, call)
    return requests.failure(error, call)
