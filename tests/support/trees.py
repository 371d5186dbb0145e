"""What is below a directory, for a test to compare, or to copy."""

import os
from pathlib import Path


def copy_tree(source: Path, target: Path) -> Path:
    """Copy a small directory in half of `shutil.copytree`'s time: no times, modes, attributes.

    What the target has besides stays there.
    """
    pairs = [(str(source), str(target))]
    for original, copy in pairs:
        os.makedirs(copy, exist_ok=True)  # noqa: PTH103 - making a `Path` takes as long as copying
        with os.scandir(original) as found:
            for one in found:
                name = f"{copy}/{one.name}"
                if one.is_dir():
                    pairs.append((one.path, name))
                else:
                    with open(one.path, "rb") as file, open(name, "wb") as to:  # noqa: PTH123
                        to.write(file.read())
    return target


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
