"""``mcp-junction --config FILE``: the stdio mode."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from mcp_junction import __version__
from mcp_junction.cli import main as program
from mcp_junction.cli.environment import hide_secrets, variables
from mcp_junction.cli.options import (
    add_config_options,
    make_parser,
    option,
    option_group,
    read_config,
    set_up_logging,
)
from mcp_junction.errors import JunctionError, UsageError

if TYPE_CHECKING:
    from mcp_junction.config.load import Config
    from mcp_junction.upstream.headstart import Headstart

_OWN = "\0own"


def run(argv: list[str]) -> int:
    options = make_parser(
        "mcp-junction",
        "One MCP endpoint for many MCP servers. Give it the mcpServers file you already have, and"
        "\nput this program where your client expects a server.",
        _epilog(),
        add_config_options,
        option(
            "--lenient",
            action="store_true",
            help="when variables or the envFile of a server are missing, start the others",
        ),
        option_group(
            "what clients see of Junction itself",
            option("--name", help="the name given to clients (default: mcp-junction)"),
            option(
                "--version",
                nargs="?",
                const=_OWN,
                metavar="X",
                help="the version given to clients; alone: print the program's own and exit",
            ),
        ),
    )
    given = options.parse_args(argv)
    if given.version == _OWN:
        print(f"mcp-junction {__version__}")
        return 0
    _need_streams()
    # What is imported here and below runs beside what was started before it: first the warden, then
    # the servers.
    from mcp_junction.upstream.headstart import head_start, start_warden

    stdout = _take_stdout()
    warden = start_warden()
    hide_secrets()
    try:
        set_up_logging(given)
        config = read_config(given, lenient=given.lenient)
    except JunctionError:
        warden.dismiss()
        _restore_stdout(stdout)
        raise
    sys.stdout = sys.stderr  # where stray prints end anyway; and they wait for nobody
    headstart = head_start(config, variables(), warden)
    from mcp_junction.cli.runner import run_async

    return run_async(_serve(config, stdout, headstart))


def _need_streams() -> None:
    for name, stream in (("stdin", sys.stdin), ("stdout", sys.stdout)):
        if program.was_closed(stream):
            raise UsageError(
                f"{name} is closed: a client speaks to this program on stdin and stdout; start it"
                " with both, or use `mcp-junction serve`"
            )


def _take_stdout() -> int:
    """A file descriptor of the real stdout; from now on fd 1 is stderr."""
    sys.stdout.flush()
    real = os.dup(1)
    os.dup2(2, 1)
    return real


def _restore_stdout(real: int) -> None:
    """Nothing will be served: fd 1 is the real stdout again."""
    os.dup2(real, 1)
    os.close(real)


def _epilog() -> str:
    commands = "\n".join(f"  {name:<9} {words}" for name, words in program.COMMANDS.items())
    return (
        f"commands:\n{commands}\n\nexamples:\n"
        "  mcp-junction --config claude_desktop_config.json\n"
        "  mcp-junction inspect --config claude_desktop_config.json\n"
        '  mcp-junction call --config mcp.json files:read_file \'{"path": "notes.txt"}\'\n'
    )


async def _serve(config: Config, stdout: int, headstart: Headstart | None) -> int:
    import logging
    import signal
    from contextlib import AsyncExitStack

    from mcp_junction.app import Junction
    from mcp_junction.catalog.endpoints import EVERYTHING
    from mcp_junction.cli.runner import stop_on_signals
    from mcp_junction.listener.dispatch import Dispatcher
    from mcp_junction.listener.pipe import PipeClient
    from mcp_junction.listener.stateless import StatelessDispatcher
    from mcp_junction.listener.stdio import StdioListener
    from mcp_junction.policy.principal import LOCAL_OWNER
    from mcp_junction.tasks import TaskScope, wait_unless

    if not config.servers:
        logging.getLogger("mcp_junction").warning(
            "%s has no enabled servers: there is nothing to serve", config.source
        )
    async with AsyncExitStack() as stack:
        credentials = None
        if any(server.transport != "stdio" for server in config.servers):
            from mcp_junction.cli.local_credentials import open_local_credentials

            credentials = await stack.enter_async_context(open_local_credentials(config))
        junction = await stack.enter_async_context(
            Junction(config, headstart=headstart, environ=variables(), token_sources=credentials)
        )
        calls = TaskScope("calls")
        stateless = StatelessDispatcher(junction)
        listener = StdioListener(
            Dispatcher(junction, calls),
            config.settings.max_line_bytes,
            calls,
            lambda wire: PipeClient(stateless, LOCAL_OWNER, EVERYTHING, wire, calls),
        )
        listener.session = junction.open_session(listener.send, listener.offer)
        ending = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
            ending.append(signal.SIGHUP)
        hurried = stop_on_signals(ending, listener.stop, lambda: listener.is_ended)
        await listener.open(0, stdout)
        await listener.serve()
        stateless.drain()
        await wait_unless(hurried, calls.settle(config.settings.drain_ms / 1000))
        listener.drop("Junction is ending")
        await calls.settle(1.0)
        await calls.close()
        await listener.close()
    return 0
