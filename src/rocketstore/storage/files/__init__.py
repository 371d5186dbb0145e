"""Files of a fixed size, mapped or read, and the calls that make them durable.

A writer has rows of mapped files (`mapped_file_queue`), the log's made ahead of time (`ahead`); a
reader of another process's store reads with ``pread`` (`pread_files`). `disk` has every call of the
system that can fail, `lock` keeps a second writer out, `whole_file` replaces small files::

    >>> from pathlib import Path
    >>> from rocketstore.storage.files.disk import Disk
    >>> from rocketstore.storage.files.mapped_file import MappedFile
    >>> path = Path("log/00000000000000004096")  # named by the offset of its first byte
    >>> file = MappedFile.create(path, base=4096, size=4096, disk=Disk())
    >>> file.write_bytes(0, b"five!")
    >>> file.write_position = 5
    >>> file.end, file.flush()
    (4101, 5)

Law: a file never shrinks, and is deleted whole. After a failed sync no other one is believed.
"""
