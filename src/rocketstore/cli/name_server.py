"""``rocketstore serve namesrv``: a name server until the process is told to end."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter, Token
from cyclopts.types import UInt16

from rocketstore.cli.options import PATH
from rocketstore.cli.serve import ending_signals, handled, on_quit
from rocketstore.cli.wording import print_on_stderr
from rocketstore.format.host import address_text
from rocketstore.format.metadata_json import decode_body
from rocketstore.nameserver.bodies import SavedValues
from rocketstore.nameserver.key_values import KeyValues
from rocketstore.nameserver.service import PORT, serving
from rocketstore.process import new_event_loop, raise_descriptors
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.files.whole_file import read_with_backup, write_atomically

if TYPE_CHECKING:
    from collections.abc import Sequence


def _named(_kind: Any, tokens: Sequence[Token]) -> str:
    """Refuse what a shell's variable without a value gives: it would be every address."""
    if not tokens[0].value:
        raise ValueError("the host is empty; 0.0.0.0 is every address.")
    return tokens[0].value


HostOption = Annotated[
    str, Parameter(help="Where it listens; 0.0.0.0 is every address.", converter=_named)
]
PortOption = Annotated[UInt16, Parameter(help="0 takes any free one.")]


def namesrv(
    *,
    host: HostOption = "127.0.0.1",
    port: PortOption = PORT,
    kv_config: Annotated[Path | None, PATH] = None,
    order_messages: bool = False,
) -> None:
    """Run a name server, for brokers and clients of 4.9; Ctrl-C or SIGTERM ends it.

    It prints where it listens, then "ready" on its standard error, where it also logs what it
    refuses.

    Parameters
    ----------
    kv_config
        File that keeps named values, the configuration of order topics above all (kvConfig.json of
        4.9); it is made when there is none. Unset: the values are lost when it ends.
    order_messages
        Send the spread of an order topic with its route (orderMessageEnable).
    """
    logging.getLogger("rocketstore.remoting").setLevel(logging.INFO)
    raise_descriptors()
    with handled(on_quit()), asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(host, port, _values(kv_config), order_messages=order_messages))


async def _serve(host: str, port: int, values: KeyValues, *, order_messages: bool) -> None:
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    for number in ending_signals():
        loop.add_signal_handler(number, told.set)
    async with serving(
        host=host, port=port, values=values, order_messages=order_messages
    ) as server:
        print(f"name server at {address_text(*server.address)}", flush=True)
        print_on_stderr("ready")
        await told.wait()


def _values(path: Path | None) -> KeyValues:
    if path is None:
        return KeyValues()
    saved = read_with_backup(path, lambda content: decode_body(content, SavedValues))
    return KeyValues(saved, lambda text: write_atomically(path, text.encode(), disk=Disk()))
