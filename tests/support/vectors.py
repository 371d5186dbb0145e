"""Small golden bytes kept in the repository, as hex text under tests/golden.

A ``#`` starts a comment up to the end of the line; blanks and line ends are for the eye.
"""

from pathlib import Path

VECTOR_ROOT = Path(__file__).resolve().parents[1] / "golden"


def vector(name: str) -> bytes:
    """Return the bytes of ``tests/golden/<name>.hex``."""
    text = (VECTOR_ROOT / f"{name}.hex").read_text("ascii")
    return bytes.fromhex("".join(line.partition("#")[0] for line in text.splitlines()))
