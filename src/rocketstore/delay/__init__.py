"""Delayed messages: kept in the delay topic until they are due, then put where they belong.

The put itself sends a message with a delay level to its queue of ``SCHEDULE_TOPIC_XXXX`` (in
`storage.log.writer`); the time in its queue entry says when it is due. Here is what delivers it.
How it works: docs/how-it-works/delay.md.
"""

from rocketstore.delay.service import DelayService
from rocketstore.delay.waiting import Waiting, waiting, waiting_messages

__all__ = ["DelayService", "Waiting", "waiting", "waiting_messages"]
