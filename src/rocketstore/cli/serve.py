"""``rocketstore serve``: run a store, or a name server, until the process is asked to end.

Each command is a module that is imported when it is used: a broker needs no replication to start.
"""

from __future__ import annotations

import contextlib
import faulthandler
import signal
import sys
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from cyclopts import App

from rocketstore.addresses import listeners
from rocketstore.cli.wording import complain
from rocketstore.config import BrokerRole, StoreConfig
from rocketstore.storage.layout import StoreLayout
from rocketstore.storage.threads import Bell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from rocketstore.config.sources import LoadedConfig
    from rocketstore.message_store import MessageStore

    Handlers: TypeAlias = dict[signal.Signals, Callable[..., object]]

app = App(name="serve")
app.command("rocketstore.cli.replication:master", name="master")
app.command("rocketstore.cli.replication:slave", name="slave")
app.command("rocketstore.cli.name_server:namesrv", name="namesrv")
app.command("rocketstore.cli.broker:broker", name="broker")


def ending_signals() -> list[signal.Signals]:
    """Return what asks to end: a terminal that is gone too, unless `nohup` has it ignored."""
    is_kept = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM] + ([] if is_kept else [signal.SIGHUP])


def on_quit() -> Handlers:
    """Return what has SIGQUIT (`kill -3`) show where each thread is, as a Java VM does."""
    # Not `faulthandler.register`: a SIGTERM that comes while it writes would not wake this thread.
    if (shown_on := sys.__stderr__) is None:
        return {}
    return {signal.SIGQUIT: lambda *_: faulthandler.dump_traceback(shown_on)}


@contextlib.contextmanager
def handled(handlers: Handlers) -> Iterator[None]:
    """Handle signals so for the length of a block."""
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class StopSignal:
    """Whether a signal asked this process to end; the bell rings then."""

    def __init__(self) -> None:
        self.bell = Bell()
        self.is_set = False
        self._is_opening = False

    @contextlib.contextmanager
    def opened(self, opens: Callable[[], MessageStore]) -> Iterator[MessageStore]:
        """Open a store, and close it; a signal ends an opening at once.

        After a crash it may take longer than those wait who ask it to end.
        """
        self._is_opening = True
        try:
            store = opens()
        finally:
            self._is_opening = False
        with store:
            yield store

    def set(self, *_of_signal: object) -> None:
        """Take note of a signal; the next one ends the process as usual.

        But the end of a terminal is told by the kernel and by the shell.
        """
        self.is_set = True
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self.bell.ring()
        if self._is_opening:
            complain("told to end while the store opened; the next opening goes on")
            raise SystemExit(0)

    def wait(self) -> None:
        """Wait for the signal."""
        while not self.is_set:
            self.wait_for_bell()

    def wait_for_bell(self) -> None:
        """Wait for a ring, or a second: another thread that is given the signal wakes nobody."""
        self.bell.wait(1)


@contextlib.contextmanager
def stop_on_signal() -> Iterator[StopSignal]:
    """Make a signal ask the process to stop, where it would end it."""
    stop = StopSignal()
    with handled(dict.fromkeys(ending_signals(), stop.set) | on_quit()):
        yield stop


def check_ports(store: Path, config: StoreConfig, *more: tuple[str, int, str]) -> None:
    """Refuse a port that is in use before a new store is made, which would stay, empty.

    `more` are hosts, ports and keys besides those for slaves and for metrics.
    """
    if StoreLayout.of(store, config).lock.exists():
        return  # it is no new one, and may be in use itself
    if config.broker_role is not BrokerRole.SLAVE and (port := config.ha_listen_port) is not None:
        more = (config.ha_listen_address, port, "haListenPort"), *more
    for place in more:
        for one in listeners(*place):
            one.close()
    if config.metrics_port:
        from rocketstore.metrics.endpoint import metrics_server

        metrics_server(config, {}).close()


def with_retention(loaded: LoadedConfig) -> StoreConfig:
    """Return settings with retention, unless they say otherwise."""
    is_unset = loaded.origins["retention"].kind == "default"
    return msgspec.structs.replace(loaded.config, retention=True) if is_unset else loaded.config
