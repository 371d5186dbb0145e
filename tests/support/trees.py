"""What is below a directory, for a test to compare."""

from pathlib import Path


def tree(directory: Path) -> dict[str, bytes]:
    """Return the files below a directory and their bytes."""
    return {name: content for name, (_, content) in tree_with_times(directory).items()}


def tree_with_times(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Return when each file below a directory was changed last, in ns, and its bytes."""
    return {
        path.relative_to(directory).as_posix(): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
