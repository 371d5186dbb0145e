"""Stores where they lie, on disks or in object stores, read without being opened.

A location (a path, or a URI such as ``s3://bucket/store``) has files; a store at one has a log,
queues and small files. Nothing here knows Spark, and nothing takes a store's lock: what is read may
be written meanwhile, so a file that is missing, short or late is a value.

``location``, ``files`` and ``objects`` know places, the others know stores::

    >>> from rocketstore.places.log_files import list_segments
    >>> [(one.base, one.state.value) for one in list_segments("/data/store")]  # doctest: +SKIP
    [(0, 'whole'), (1073741824, 'whole')]

Laws: no file is mapped or opened for writing. Each process has clients of its own. Executors use
this package, so it imports no ``storage``; only a driver asks it who holds a store's lock.
"""
