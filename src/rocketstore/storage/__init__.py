"""Files and time: a store directory, its one writer and its readers.

`store` has the store that writes, `read_only` the one that reads beside a writer of any kind, and
`opening` puts the parts of either together. The packages, each of which imports only those before
it: `files`; `log`, `queues` and `index`; `dispatch` and `transient_pool`; `reading`; `kinds` of
topics; `recovery`; `audit`. `services` has the threads of a store that writes, `retention` what
deletes its old files.

Law: one process writes to a directory and holds its lock; a reader locks and changes nothing. Time
is passed in. What a message needs is read from the store, whichever class opened it. Examples in
the packages assume ``from rocketstore import *``.
"""
