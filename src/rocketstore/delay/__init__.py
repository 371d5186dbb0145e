"""Delayed messages: kept in the delay topic until they are due, then put where they belong.

The put itself sends a message with a delay level to its queue of ``SCHEDULE_TOPIC_XXXX`` (in
`storage.log.writer`); the time in its queue entry says when it is due. Here is what delivers it::

    >>> from rocketstore.delay.waiting import waiting_messages
    >>> with MessageStore.open("store", StoreConfig.small()) as store:
    ...     late = Message(topic="reminders", body=b"pay", properties={"DELAY": "3"})
    ...     result = store.put(late)  # in ten seconds
    >>> with MessageStore.open("store", read_only=True) as reader:
    ...     [(one.level, one.topic) for one in waiting_messages(reader)]
    [(3, 'reminders')]

Law: no message is delivered before its delay is over, whatever the clock does.
Page: docs/how-it-works/delay.md.
"""

from rocketstore.delay.service import DelayService
from rocketstore.delay.waiting import Waiting, waiting, waiting_messages

__all__ = ["DelayService", "Waiting", "waiting", "waiting_messages"]
