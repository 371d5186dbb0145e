"""Transactions: half messages, which no consumer gets before their producer commits them.

A half message lies in a topic of its own. A commit puts the final message where it belongs, and
then an op message that says that the half one has ended; a rollback puts the op message alone::

    >>> with MessageStore.open("store", StoreConfig.small()) as store:
    ...     half = store.begin(Message(topic="orders", body=b"o-17"))
    ...     store.commit(half).status.name
    'COMMITTED'

Law: nothing is changed in place. Page: docs/how-it-works/transactions.md.
"""
