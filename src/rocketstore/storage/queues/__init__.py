"""ConsumeQueues: for each queue of a topic, where its messages lie in the log.

Dispatch writes them (`consume_queue`, all of a store in `queue_table`), a reader of another
process's store reads them with ``pread`` (`pread_queue`); both search as `scan.queue_search` does::

    >>> with MessageStore.open("store", StoreConfig.small()) as store:
    ...     result = store.put(Message(topic="orders", body=b"o-17"))
    ...     assert store.wait_dispatched()
    ...     print(*store.queue_entries("orders", 0))
    (0, QueueEntry(physical_offset=0, record_size=101, tags_code=0))

Law: entry n stands at byte 20 n, so a queue offset never moves. Asking for a queue makes none.
"""
