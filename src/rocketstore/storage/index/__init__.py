"""The key index: which records may have a topic and a key.

`index_service` makes, flushes and cuts the files of a store that is written; `pread_index` reads
those of another process's store. Items are put by ``native.index`` and found by ``native.lookup``,
for ``find`` of ``storage.reading``::

    >>> with MessageStore.open("store", StoreConfig.small()) as store:
    ...     result = store.put(Message(topic="orders", body=b"o-17", keys="17 eu"))
    ...     store.wait_dispatched()
    ...     [message.body for message in store.find("orders", key="eu")]
    True
    [b'o-17']

Law: an item is a hint, and the record decides. Names of files rise, whatever the clock says.
"""
