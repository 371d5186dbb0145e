"""Files that are made ahead of a log, in another thread."""

from rocketstore.storage.files.ahead import Preallocator


def wait_idle(files: Preallocator, timeout_s: float) -> bool:
    """Wait until all files asked for are made or given up."""
    return files._changes.wait_for(
        lambda: not files._wanted and files._under_way is None, timeout_s
    )
