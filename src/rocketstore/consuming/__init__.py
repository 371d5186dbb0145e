"""Consuming in process: groups that share queues, acknowledge and give back.

A `consumer` is one member of a `group`, which knows who reads which queue and what is read and not
yet acknowledged (`window`); `giving_back` makes the copy for a second try::

    >>> with MessageStore.open("store", StoreConfig.small()) as store:
    ...     result = store.put(Message(topic="orders", body=b"o-17"))
    ...     message = next(store.consume("orders", group="billing", start="first"))
    ...     message.body, message.ack()
    (b'o-17', True)

Law: nothing is acknowledged by itself, and what is not acknowledged is delivered again. A put whose
future is resolved when the message is safe is in `async_puts`.
"""
