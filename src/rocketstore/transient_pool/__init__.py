"""The transient store pool: puts go to memory first, and a thread writes them to the log's files.

`pool` has the buffers and the files that are written by way of them, `service` the thread. Page:
docs/how-it-works/transient-pool.md, decision docs/decisions/0026-transient-pool.md.
"""

from rocketstore.transient_pool.service import TransientPoolService

__all__ = ["TransientPoolService"]
