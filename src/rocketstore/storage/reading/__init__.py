"""Everything that reads messages, over any store: by queue, by key, by id, by time.

`reader` has the calls, `pages` says how large a page may be, `pread_log` is the log of a store that
another process may be writing::

    >>> with MessageStore.open("store", StoreConfig.small()) as store:
    ...     result = store.put(Message(topic="orders", body=b"o-17"))
    ...     assert store.wait_dispatched()
    ...     page = store.get("orders", queue_id=0, offset=0)
    >>> str(page.status), page.next_offset, page.messages[0].body
    ('GetMessageStatus.FOUND', 1, b'o-17')

Law: only intact messages are returned, and an outcome that can be expected is a value, not an
error.
"""
