"""Look at a whole store without changing it, and repair what was found.

`store_audit` compares log, queues and index; `repair_plan` says what a repair would do, and
`repair` does it. The public calls are ``verify_store("store").findings`` and ``repair_store``.

Law: only the log says what is true. An audit writes nothing and takes no lock; a repair copies
what it cuts, and an audit of what it leaves finds nothing more to do.
"""
