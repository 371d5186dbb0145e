"""What is refused, before the store is asked or by the store: code and remark of the reply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocketstore.broker.codes import BrokerAnswer
from rocketstore.errors import FlushFailedError, StoreClosedError
from rocketstore.remoting import requests
from rocketstore.remoting.command import Command, reply

if TYPE_CHECKING:
    from rocketstore.remoting.requests import Call

SEE: Final = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."
"""How remarks of 4.9 end (FAQUrl.suggestTodo)."""


class Refused(Exception):  # noqa: N818 - it becomes a reply
    """A request that a check ended."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark


def failure(error: BaseException, call: Call) -> Command:
    """Return what is answered where a handler raised: a store that takes nothing has its code."""
    if isinstance(error, StoreClosedError | FlushFailedError):
        return reply(BrokerAnswer.SERVICE_NOT_AVAILABLE, str(error))
    return requests.failure(error, call)
