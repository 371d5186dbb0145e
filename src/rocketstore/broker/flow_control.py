"""What waited too long is refused, so that its client goes elsewhere or slows down.

Law: time counts from when the bytes of a request came, or the loop wrote a table last: that is the
broker's own doing. Requests wait behind others of their turn, and for a thread aside; 4.9 has a
queue and threads per kind, and looks at the queues each 10 ms.

How derived: BrokerFastFailure of 4.9. Its [PCBUSY_CLEAN_QUEUE] empties the queue of sends while a
put holds the lock of the log for a second; here that put's own turn waits with it and is told so
afterwards, and a put of another thread [PC_SYNCHRONIZED].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketstore.broker.codes import BrokerRequest
from rocketstore.remoting.codes import ResponseCode
from rocketstore.remoting.command import Command, reply

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocketstore.broker.settings import BrokerSettings
    from rocketstore.broker.topics import Topics
    from rocketstore.remoting.requests import Call


class FlowControl:
    """Knows how long each kind of request may wait."""

    def __init__(
        self, settings: BrokerSettings, topics: Topics, monotonic: Callable[[], int]
    ) -> None:
        self._topics, self._monotonic = topics, monotonic
        self._most_ms: dict[int, int] = {}
        if settings.broker_fast_failure_enable:
            send_ms = settings.wait_time_mills_in_send_queue
            self._most_ms = {
                BrokerRequest.SEND_MESSAGE: send_ms,
                BrokerRequest.SEND_MESSAGE_V2: send_ms,
                BrokerRequest.SEND_BATCH_MESSAGE: send_ms,
                BrokerRequest.CONSUMER_SEND_MSG_BACK: send_ms,
                BrokerRequest.PULL_MESSAGE: settings.wait_time_mills_in_pull_queue,
                BrokerRequest.LITE_PULL_MESSAGE: settings.wait_time_mills_in_pull_queue,
                BrokerRequest.HEART_BEAT: settings.wait_time_mills_in_heartbeat_queue,
                BrokerRequest.END_TRANSACTION: settings.wait_time_mills_in_transaction_queue,
            }

    def refusal(self, call: Call, waiting: int) -> Command | None:
        """Return the refusal of a call that waited too long, with so many others, if it did."""
        most_ms = self._most_ms.get(call.command.code)
        since_ms = max(call.received_ms, self._topics.made_ms)
        if most_ms is None or (waited_ms := self._monotonic() - since_ms) < most_ms:
            return None
        return reply(
            ResponseCode.SYSTEM_BUSY,
            "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: "
            f"{waited_ms}ms, size of queue: {waiting}",
        )
