"""Look at a whole store without changing it, and repair what was found.

`store_audit` compares log, queues and index; `repair_plan` says what a repair would do, and
`repair` does it::

    >>> with MessageStore.open("store", StoreConfig.small()) as store:
    ...     result = store.put(Message(topic="orders", body=b"o-17"))
    >>> Path("store/consumequeue/orders/0/00000000000000000000").unlink()
    >>> [finding.kind for finding in verify_store("store").findings]
    ['queue-missing']
    >>> repair_store("store").actions
    ['queue orders/0: write 1 entry (0)']

Law: only the log says what is true. An audit writes nothing and takes no lock; a repair copies
what it cuts, and an audit of what it leaves finds nothing more to do.
"""
