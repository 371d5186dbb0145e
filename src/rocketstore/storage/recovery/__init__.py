"""What a store does with its files after a stop, a crash or a fault, before the first new message.

`recover` is the order of it; `log_survey` finds where the log ends, `lost_files` what is missing,
`queue_recovery` brings the queues to that end, `evidence` keeps what is cut. The policy
``compatible`` is `recovery_compatible`, and `replacement` puts queues that a rebuild made
in the place of the old ones. What was done is a report::

    >>> with MessageStore.open("store", StoreConfig.small()) as store:
    ...     result = store.put(Message(topic="orders", body=b"o-17"))
    >>> with MessageStore.open("store") as store:
    ...     store.recovery.was_clean, store.recovery.end
    (True, 101)

Law: only bytes after the last kept record are cut, and only after they were copied.
"""
