"""``mcp-junction --config FILE``: the stdio mode."""

from __future__ import annotations

import logging
import os
import signal
from typing import TYPE_CHECKING

from mcp_junction import __version__
from mcp_junction.cli import main as program
from mcp_junction.cli.options import add_config_options, parser, read_config, set_up_logging

if TYPE_CHECKING:
    from mcp_junction.config.load import Config
    from mcp_junction.upstream.headstart import Headstart

log = logging.getLogger("mcp_junction")

_OWN = "\0own"


def run(argv: list[str]) -> int:
    options = parser(
        "mcp-junction",
        "One MCP endpoint for many MCP servers. Give it the mcpServers file you already have, and"
        "\nput this program where your client expects a server.",
        _epilog(),
    )
    add_config_options(options)
    about = options.add_argument_group("what clients see of Junction itself")
    about.add_argument("--name", help="the name given to clients (default: mcp-junction)")
    about.add_argument(
        "--version",
        nargs="?",
        const=_OWN,
        metavar="X",
        help="the version given to clients; alone: print the program's own and exit",
    )
    given = options.parse_args(argv)
    if given.version == _OWN:
        print(f"mcp-junction {__version__}")
        return 0
    set_up_logging(given)
    config = read_config(given)
    from mcp_junction.listener.stdout import take_stdout
    from mcp_junction.upstream.headstart import head_start

    stdout = take_stdout()
    headstart = head_start(config, os.environ)
    # From here on the servers start beside us.
    from mcp_junction.cli.runner import run_async

    return run_async(_serve(config, stdout, headstart))


def _epilog() -> str:
    commands = "\n".join(f"  {name:<9} {words}" for name, words in program.COMMANDS.items())
    return (
        f"commands:\n{commands}\n\nexamples:\n"
        "  mcp-junction --config claude_desktop_config.json\n"
        "  mcp-junction inspect --config claude_desktop_config.json\n"
        '  mcp-junction call --config mcp.json files:read_file \'{"path": "notes.txt"}\'\n'
    )


async def _serve(config: Config, stdout: int, headstart: Headstart | None) -> int:
    import asyncio

    from mcp_junction.app import Junction
    from mcp_junction.catalog.endpoints import EVERYTHING
    from mcp_junction.listener.dispatch import Dispatcher
    from mcp_junction.listener.pipe import PipeClient
    from mcp_junction.listener.stateless import StatelessDispatcher
    from mcp_junction.listener.stdio import StdioListener
    from mcp_junction.policy.principal import LOCAL_OWNER
    from mcp_junction.tasks import TaskScope

    if not config.servers:
        log.warning("%s has no enabled servers: there is nothing to serve", config.source)
    async with Junction(config, headstart=headstart) as junction:
        calls = TaskScope("calls")
        stateless = StatelessDispatcher(junction, calls)
        listener = StdioListener(
            Dispatcher(junction, calls),
            config.settings.max_line_bytes,
            lambda wire: PipeClient(stateless, LOCAL_OWNER, EVERYTHING, wire, calls),
        )
        listener.session = junction.open_session(listener.send, listener.offer)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, listener.stop)
        await listener.open(0, stdout)
        await listener.serve()
        stateless.drain()
        await calls.settle(config.settings.drain_ms / 1000)
        listener.drop("Junction is ending")
        await calls.settle(1.0)
        await calls.close()
        await listener.close()
    return 0
