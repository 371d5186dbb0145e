"""The JSON tables of a broker in ``config/``: each has one owner, which reads and writes it.

`consumer_offsets` has where each group continues, `delay_offsets` the same of delay levels,
`topic_settings` and `groups` the settings of topics and groups. `positions` tells which log the
offsets count, and `lags` how far groups are behind::

    >>> with MessageStore.open("store", StoreConfig.small()) as store:
    ...     store.consumer_offsets.set("orders", "billing", 0, 17)
    ...     store.consumer_offsets.get("orders", "billing", 0)
    17

Law: a field that the owner does not know, for example of a newer broker, stays in the table.
"""
