"""The rules by which a store is judged: its log, queues, index and small files against each other.

``rocketstore store verify`` applies them on one machine, ``rocketstore pipeline audit`` as tasks of
Spark; both report a `Finding` for each fault::

    >>> with MessageStore.open("store", StoreConfig.small()) as store:
    ...     result = store.put(Message(topic="orders", body=b"o-17"))
    >>> report = verify_store("store")
    >>> report.findings, report.exit_code
    ([], 0)

`queue_rules`, `batch_rules` and `index_rules` compare queues and index with the log,
`queue_findings` says what is wrong with a queue, `file_rules` judges names and lengths,
`small_files` checkpoint and JSON tables. What a writer must agree on is in `rocketstore.rules`:
kinds of findings, where a log ends, what an earlier one left.

Law: nothing here knows a file, a thread or Spark, and no store that is open imports it.
Page: docs/guide/repair.md.
"""
