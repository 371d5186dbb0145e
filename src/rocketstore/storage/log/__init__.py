"""The CommitLog: how a message is checked, appended and made durable.

A put goes through `writer` (may it be stored?), `prepared` (the record that it becomes),
`commit_log` (its place, under one lock) and `flush` (which answers when it is on the disk)::

    >>> with MessageStore.open("store", StoreConfig.small()) as store:
    ...     results = [store.put(Message(topic="orders", body=b"o-17")) for _ in range(2)]
    >>> [(result.physical_offset, result.size) for result in results]
    [(0, 101), (101, 101)]

Law: an append happens as a whole or not at all, and no put is acknowledged before what its flush
mode promises is true. Store times never go back.
"""
