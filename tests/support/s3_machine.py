"""The S3 server of tests as a process: ``python -m support.s3_machine HOST NAME=DIRECTORY…``.

It begins with these stores, and answers JSON lines (`line_process`).
"""

import json
import sys
from pathlib import Path

from support.s3_server import running_s3


def main(host: str, *stores: str) -> None:
    """Serve until the input ends."""
    with running_s3(host) as server:
        for name, _, directory in (one.partition("=") for one in stores):
            server.put_tree(Path(directory), name)
        for line in sys.stdin:
            asked = json.loads(line)
            for name, content in server.tree(asked.get("name", "")).items():
                path = Path(asked["directory"], name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            sys.stdout.write(json.dumps({"ok": True, "uri": server.uri("NAME")}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
