"""What is refused before the store is asked: code and remark of the reply."""

from __future__ import annotations

from typing import Final

SEE: Final = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."
"""How remarks of 4.9 end (FAQUrl.suggestTodo)."""


class Refused(Exception):  # noqa: N818 - it becomes a reply
    """A request that a check ended."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark
