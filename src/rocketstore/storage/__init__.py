"""Files and time: a store directory, its one writer and its readers.

`store` has the store that writes, `read_only` the one that reads beside a writer of any kind, and
`opening` puts the parts of either together. The packages, each of which imports only those before
it: `files`; `log`, `queues` and `index`; `dispatch` and `transient_pool`; `reading`; `kinds` of
topics; `recovery`. `workers` has the threads of a store that writes, `attached` the services that
others add, `retention` what deletes old files::

    >>> with MessageStore.open("store", StoreConfig.small()) as store:
    ...     result = store.put(Message(topic="orders", body=b"o-17"))
    ...     store.wait_dispatched()
    ...     with MessageStore.open("store", read_only=True) as reader:
    ...         [message.body for message in reader.get("orders", queue_id=0, offset=0).messages]
    True
    [b'o-17']

Law: one process writes to a directory and holds its lock; a reader locks and changes nothing. Time
is passed in. What a message needs is read from the store, whichever class opened it. Examples in
the packages assume ``from rocketstore import *``.
"""
