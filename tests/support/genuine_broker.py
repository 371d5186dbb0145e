"""A genuine name server, broker and client of 4.9.7, with their network, as a Python object.

``tests/interop/java49`` names their jars and has the one class that drives them.
"""

from pathlib import Path
from typing import Any

from support.java_program import OPEN, JavaProgram, class_path
from support.java_store import DISK_MAY_BE_FULL, SMALL_FILES
from support.line_process import InHome
from support.ports import free_port

PROJECT = Path(__file__).resolve().parents[1] / "interop" / "java49"


def genuine_class_path() -> str:
    """Return the paths of the jars."""
    return class_path(PROJECT)


class GenuineBroker(InHome):
    """One of each in a JVM, at free ports of the loopback."""

    def __init__(self) -> None:
        super().__init__()  # its own directories are there too
        options = [*OPEN, DISK_MAY_BE_FULL, "-Dtls.server.mode=disabled"]
        options += [f"-Duser.home={self._home.name}", f"-Drocketmq.home.dir={self._home.name}"]
        logging = Path(self._home.name, "conf", "logback_tools.xml")
        logging.parent.mkdir()
        logging.write_text("<configuration/>")  # mqadmin does nothing without
        self._process = JavaProgram(PROJECT, PROJECT / "GenuineBroker.java", options)

    def start_name_server(self) -> str:
        """Start a name server; return its address."""
        port = free_port()
        self._process.ask("nameServer", path=self._home.name, port=port)
        return f"127.0.0.1:{port}"

    def start_broker(
        self, name_server: str, path: Path | None = None, port: int | None = None, **settings: Any
    ) -> str:
        """Start a broker that registers with a name server; return its address."""
        port = port or free_port()
        place = {"path": str(path or f"{self._home.name}/store"), "port": port}
        # On a busy machine a send may wait for more than 200 ms, after which it is refused.
        own = {"namesrvAddr": name_server, "brokerFastFailureEnable": False}
        config = {**SMALL_FILES, **own, **settings}
        self._process.ask("broker", config=config, **place)
        return f"127.0.0.1:{port}"

    def stop_broker(self) -> None:
        """Stop the broker in order; it unregisters."""
        self._process.ask("stop")

    def send(self, name_server: str, topic: str, *bodies: str) -> list[str]:
        """Send messages with a client; return status and broker of each."""
        ask = {"nameServer": name_server, "topic": topic, "bodies": bodies}
        results: list[str] = self._process.ask("send", **ask)["results"]
        return results

    def keys(self) -> set[str]:
        """Return the keys that a broker.conf may have."""
        return set(self._process.ask("keys")["keys"])

    def mqadmin(self, *arguments: str) -> str:
        """Return what a command of mqadmin prints."""
        output: str = self._process.ask("mqadmin", arguments=arguments)["output"]
        return output
