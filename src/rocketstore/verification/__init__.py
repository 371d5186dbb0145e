"""The rules by which a store is judged: its log, queues, index and small files against each other.

``rocketstore store verify`` applies them on one machine, ``rocketstore pipeline audit`` as tasks of
Spark; both report a `Finding` for each fault::

    >>> with MessageStore.open("store", StoreConfig.small()) as store:
    ...     result = store.put(Message(topic="orders", body=b"o-17"))
    >>> report = verify_store("store")
    >>> report.findings, report.exit_code
    ([], 0)

`findings` declares every kind of fault with its severity and remedy. `log_rules` and `leftovers`
decide where a log ends, `queue_rules`, `batch_entries` and `index_rules` compare queues and index
with it, `small_files` judges checkpoint and JSON tables.

Law: nothing here knows a file, a thread or Spark; rules take columns and return values.
Page: docs/guide/repair.md.
"""
