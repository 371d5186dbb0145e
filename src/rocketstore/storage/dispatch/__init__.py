"""From the CommitLog into queues and index, and waking those who wait.

`dispatcher` follows the log and has compiled loops enter its records, `entry_decisions` decides
what those leave open, `dispatch_service` is the thread. A listener is called for each message::

    >>> with MessageStore.open("store", StoreConfig.small()) as store:
    ...     store.add_listener(lambda arrival: print(arrival.topic, arrival.next_offset))
    ...     result = store.put(Message(topic="orders", body=b"o-17"))
    orders 1

Law: no record that can be read is passed over, and entering one twice changes nothing.
"""
