"""The custom headers of a pull (code 11).

Source: PullMessageRequestHeader, PullMessageResponseHeader and PullSysFlag of 4.9.
"""

from __future__ import annotations

from typing import Final

from rocketstore.remoting.fields import Header, Int32, Int64

COMMITS: Final = 1
WAITS: Final = 2
SUBSCRIBES: Final = 4
"""Bits of `PullHeader.sys_flag`: it commits an offset, may be held, says what it wants itself."""


class PullHeader(Header):
    """Which messages a consumer wants next of a queue."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64
    suspend_timeout_millis: Int64 = 0
    subscription: str | None = None
    sub_version: Int64 = 0
    expression_type: str | None = None


class PullReply(Header):
    """Where to go on, and how long the queue is."""

    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64
