"""The transient store pool: puts go to memory first, and a thread writes them to the log's files.

A part of the storage, since the log writes by way of it from its first byte on: `pool` has the
buffers, and the files that are written by way of them; `committer` is the thread. Page:
docs/how-it-works/transient-pool.md, decision docs/decisions/0026-transient-pool.md.
"""
