"""What commands share: the options about a config file, and the parser that explains itself."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from mcp_junction.cli.environment import variables
from mcp_junction.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from mcp_junction.config.load import Config

PREFIX_MODES = ("always", "auto", "never")
EXPOSURES = ("all", "search")
_SETTINGS = (
    "name",
    "version",
    "separator",
    "prefix",
    "exposure",
    "stdio_only",
    "restart",
    "inherit_env",
    "require_key",
    "trusted_proxies",
    "store",
)


class Parser(argparse.ArgumentParser):
    """A parser whose errors say how to get help, and are raised instead of exiting."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}\ntry: {self.prog} --help")


class Formatter(argparse.RawDescriptionHelpFormatter):
    """As wide as the terminal; finds that out itself, for a parser makes one before it parses."""

    def __init__(self, prog: str) -> None:
        try:
            # Not by shutil, whose imports would take longer than parsing.
            columns = int(os.environ.get("COLUMNS") or os.get_terminal_size().columns)
        except (OSError, ValueError):
            columns = 80
        super().__init__(prog, width=max(columns, 40) - 2)


def parser(prog: str, description: str, epilog: str = "") -> Parser:
    return Parser(
        prog=prog,
        description=description,
        epilog=epilog,
        formatter_class=Formatter,
        allow_abbrev=False,
    )


def add_config_options(options: argparse.ArgumentParser) -> None:
    """The options of every command that starts servers."""
    options.add_argument(
        "--config", metavar="FILE", help="the mcpServers file (JSON, comments allowed)"
    )
    names = options.add_argument_group("names")
    names.add_argument(
        "--separator",
        metavar="X",
        help="write every tool as SERVER X TOOL, whoever the client is"
        " (default: ':', '.' in serve, and '__' for clients that refuse it)",
    )
    names.add_argument(
        "--prefix",
        choices=PREFIX_MODES,
        help="put the server's key before its tools: always (default), auto (not when there is"
        " only one server) or never",
    )
    names.add_argument(
        "--exposure",
        choices=EXPOSURES,
        help="list all tools (default), or three to search, look at and call them with",
    )
    servers = options.add_argument_group("servers")
    servers.add_argument(
        "--stdio-only", action="store_true", default=None, help="refuse entries with a url"
    )
    servers.add_argument(
        "--restart", action="store_true", default=None, help="start a child again when it ends"
    )
    servers.add_argument(
        "--inherit-env",
        action="store_true",
        default=None,
        help="give servers the whole environment, not only PATH, HOME and the like",
    )
    logs = options.add_argument_group("logs")
    logs.add_argument("--debug", action="store_true", help="log everything, not only what is wrong")
    logs.add_argument("--log-file", metavar="FILE", help="log there as well as on stderr")


def add_lenient_option(options: argparse.ArgumentParser) -> None:
    options.add_argument(
        "--lenient",
        action="store_true",
        help="start the other servers when the variables or the envFile of one are missing",
    )


def read_config(
    given: argparse.Namespace, *, service: bool = False, lenient: bool = False
) -> Config:
    """The config a command was given. Raises ConfigError or UsageError.

    ``lenient``: a server whose variables are missing fails alone, instead of the whole file.
    A service is always lenient, and needs no file.
    """
    # Imported where they are used: asking for help needs none of it.
    from mcp_junction.config.load import load, without_file
    from mcp_junction.upstream.child_env import is_circular

    environ = variables()
    options: dict[str, Any] = {key: getattr(given, key, None) for key in _SETTINGS}
    if not given.config:
        if service:
            return without_file(environ, options, _demo_servers() if given.demo else {})
        raise UsageError("--config FILE is needed: the mcpServers file to serve")
    config = load(given.config, environ, options, lenient=lenient or service)
    if is_circular(environ, config.identity):
        raise UsageError(
            f"circular reference: {given.config} is already being served by an aggregator above"
            " this one; remove the entry that starts mcp-junction with this file"
        )
    return config


def _demo_servers() -> dict[str, Any]:
    """Entries for the servers that come with the program."""
    from mcp_junction.demo import DEMOS

    return {
        name: {"command": sys.executable, "args": ["-m", module]} for name, module in DEMOS.items()
    }


def set_up_logging(given: argparse.Namespace) -> None:
    """Errors and warnings on stderr, which from now on holds nobody up, whoever writes there.

    Everything with --debug; also to a file if asked.
    """
    import logging  # asking for help needs none

    from mcp_junction.cli.stderr import RedactingFormatter, take_stderr

    take_stderr()
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    if given.log_file:
        try:
            handlers.append(logging.FileHandler(given.log_file, encoding="utf-8"))
        except OSError as error:
            raise UsageError(f"--log-file {given.log_file}: {error.strerror}") from None
    formatter = RedactingFormatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    for handler in handlers:
        handler.setFormatter(formatter)
    level = logging.DEBUG if given.debug else logging.WARNING
    logging.basicConfig(level=level, handlers=handlers)


def add_data_dir(options: argparse._ActionsContainer) -> None:
    options.add_argument(
        "--data-dir", metavar="DIR", help=f"where data is kept (default: {default_data_dir()})"
    )


def add_store_options(options: argparse.ArgumentParser) -> None:
    add_data_dir(options)
    options.add_argument(
        "--store",
        metavar="URL",
        help="sqlite:///PATH or postgresql://… (default: junction.db in the data directory)",
    )


def data_dir(given: argparse.Namespace) -> Path:
    from pathlib import Path  # nothing that the stdio mode loads before its servers run

    return Path(given.data_dir or os.environ.get("JUNCTION_DATA_DIR") or default_data_dir())


def default_data_dir() -> str:
    base = os.environ.get("XDG_DATA_HOME") or os.path.join("~", ".local", "share")
    if sys.platform == "darwin":
        base = os.path.join("~", "Library", "Application Support")
    return os.path.expanduser(os.path.join(base, "mcp-junction"))
