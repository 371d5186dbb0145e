"""What the system tells of a process of this machine, to know whether it is still the same one."""

from __future__ import annotations

from pathlib import Path


def started(pid: int) -> int:
    """Return when a process started, in ticks since boot; 0 when there is none."""
    fields = process_stat(pid)
    return int(fields[2]) if fields else 0


def process_stat(pid: int) -> list[str]:
    """Return name, parent and start of a process that lives; nothing for others."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace")
    except OSError:
        return []
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    # Field 3 of proc(5) is the first here: state, parent, ..., start time is field 22.
    return [] if fields[0] in ("Z", "X") else [name, fields[1], fields[19]]
