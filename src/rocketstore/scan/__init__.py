"""Reading the bytes of a log, healthy or not: one walk from bytes to columns.

``scanner`` accounts for every byte of a CommitLog file and lets a worker begin anywhere in it,
``columns`` holds what a walk finds, ``arrow`` copies it into batches. ``kernels`` has the bulk
functions of ``native``. Importing this package loads none of these::

    >>> from rocketstore.scan.scanner import scan_window
    >>> with MessageStore.open("store", StoreConfig.small()) as store:
    ...     result = store.put(Message(topic="orders", body=b"o-17"))
    >>> content = Path("store/commitlog/00000000000000000000").read_bytes()
    >>> [(batch.columns, batch.damage) for batch in scan_window(content, base=0)]
    [(RecordColumns(1 records, base=0), [])]

Law: no length that a file says is believed before it was compared with what is there.
"""
