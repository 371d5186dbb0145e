"""Replication: a slave follows the CommitLog of a master, byte for byte.

`master` and `slave` are the services of either side. Each connection is a `link`, a socket, and a
session that knows none (`master_session`, `slave_session`): bytes in, bytes out. `protocol` has the
frames, `intake` waits for whole records, `renewal` sets aside a log that does not fit. An open
store says how it goes::

    >>> master = MessageStore.open("master", StoreConfig.small(ha_listen_port=0))
    >>> master.replication.followers
    []
    >>> master.close()

Law: neither side believes the other. Page: docs/how-it-works/replication.md.
"""
