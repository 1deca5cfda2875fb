"""Options that commands share, and their effect: config file, logging, data directory."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from mcp_junction.cli.environment import variables
from mcp_junction.config.variables import read_dotenv
from mcp_junction.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from mcp_junction.config.load import Config
    from mcp_junction.config.settings import Settings

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
    "tls_cert",
    "tls_key",
    "store",
)

_MAX_PORT = 65_535
_MAX_DIGITS = 5


class Parser(argparse.ArgumentParser):
    """A parser whose errors are raised as UsageError and say how to get help."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"formatter_class": Formatter, **settings})

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}\ntry: {self.prog} --help")


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Formats help as wide as the terminal; without shutil, which is slow to import."""

    def __init__(self, prog: str) -> None:
        try:
            columns = int(os.environ.get("COLUMNS") or os.get_terminal_size().columns)
        except (OSError, ValueError):
            columns = 80
        super().__init__(prog, width=max(columns, 40) - 2)


def make_parser(prog: str, description: str, epilog: str = "", *options: AddOption) -> Parser:
    """Make the parser of a command that has these options."""
    parser = Parser(prog=prog, description=description, epilog=epilog, allow_abbrev=False)
    add_options(parser, *options)
    return parser


# -- what adds options to a parser: a single one, a group, or all that several commands share

AddOption = Callable[[argparse._ActionsContainer], object]


def option(*names: str, **settings: Any) -> AddOption:
    """Make what adds an option, or an argument without a name, as ``add_argument`` takes it."""
    return lambda parser: parser.add_argument(*names, **settings)


def option_group(title: str, *options: AddOption) -> AddOption:
    """Make what adds options under a title of their own."""
    return lambda parser: add_options(parser.add_argument_group(title), *options)


def add_options(parser: argparse._ActionsContainer, *options: AddOption) -> None:
    """Add options to a parser, in this order."""
    for add in options:
        add(parser)


Action = Callable[[Any, str, Sequence[AddOption]], None]
"""Adds one action of a command, like the ``list`` of ``servers list``, under a name."""


def action(act: Callable[..., Any], help: str, *options: AddOption, **texts: Any) -> Action:
    """Make an action that ``act`` does; ``texts``: its description, epilog or usage."""

    def add(parsers: Any, name: str, shared: Sequence[AddOption]) -> None:
        parser = parsers.add_parser(name, help=help, **texts)
        add_options(parser, *options, *shared)
        parser.set_defaults(act=act)

    return add


def add_actions(
    parser: argparse.ArgumentParser, actions: Mapping[str, Action], *shared: AddOption
) -> None:
    """Add the actions of a command, each with the shared options after its own.

    Of what was given, ``act`` is what the chosen one does, and ``action_name`` its name.
    """
    parsers = parser.add_subparsers(dest="action_name", required=True, metavar="ACTION")
    for name, add in actions.items():
        add(parsers, name, shared)


_SERVERS = option_group(
    "servers",
    option("--stdio-only", action="store_true", default=None, help="refuse entries with a url"),
    option(
        "--restart",
        action="store_true",
        default=None,
        help="restart a server's process when it ends",
    ),
    option(
        "--inherit-env",
        action="store_true",
        default=None,
        help="pass the whole environment to servers, not only PATH, HOME and the like",
    ),
)
_LOGS = option_group(
    "logs",
    option("--debug", action="store_true", help="log everything, not only warnings and errors"),
    option("--log-file", metavar="FILE", help="log to this file as well as to stderr"),
)


def add_config_options(options: argparse._ActionsContainer) -> None:
    """Add the options of every command that starts servers."""
    from mcp_junction.config.settings import EXPOSURES, PREFIX_MODES  # late: demo needs no config

    add_options(
        options,
        option("--config", metavar="FILE", help="the mcpServers file (JSON, comments allowed)"),
        option_group(
            "names",
            option(
                "--separator",
                metavar="X",
                help="the text between server and tool in a tool's name"
                " (default: ':', in serve '.', and '__' for clients that accept neither)",
            ),
            option(
                "--prefix",
                choices=PREFIX_MODES,
                help="put the server's key before its tools' names: always (default), auto (unless"
                " there is only one server) or never",
            ),
            option(
                "--exposure",
                choices=EXPOSURES,
                help="list all tools (default), only three to search, describe and call them, or by"
                " size",
            ),
        ),
        _SERVERS,
        _LOGS,
    )


def add_service_options(options: argparse._ActionsContainer) -> None:
    """Add the options of a service, beside those of every command that starts servers."""
    add_options(
        options,
        option(
            "--demo", action="store_true", help="serve the small servers that come with the program"
        ),
        option_group(
            "network",
            option(
                "--host", default="127.0.0.1", help="where to listen; off this machine needs keys"
            ),
            option(
                "--port", type=read_port, default=8420, help="default: 8420; 0 takes a free one"
            ),
            option(
                "--require-key",
                action="store_true",
                default=None,
                help="ask for a key on loopback too",
            ),
            option(
                "--owner-without-key",
                action="store_true",
                help="let your own programs on this machine use /mcp without a key, although keys"
                " were made; on loopback only",
            ),
            option(
                "--tls-cert",
                metavar="FILE",
                help="serve https with this certificate, and those that lead to its root (PEM); it"
                " is read again when it changes",
            ),
            option("--tls-key", metavar="FILE", help="the key of the certificate (PEM)"),
            option(
                "--trusted-proxies",
                metavar="LIST",
                help="addresses or networks of proxies whose X-Forwarded-* headers are believed",
            ),
        ),
        add_store_options,
    )


def read_port(text: str) -> int:
    """Read a port of an option; the socket would take one that is too large for another."""
    is_short = text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
    if not is_short or int(text) > _MAX_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: 0 to {_MAX_PORT}")
    return int(text)


def read_config(
    args: argparse.Namespace, *, service: bool = False, lenient: bool = False
) -> Config:
    """Read the config file that the options name. Raises ConfigError or UsageError.

    ``lenient``: a server whose variables are missing fails alone, instead of the whole file.
    A service is always lenient, and needs no file.
    """
    # Imported late: --help does not need them.
    from mcp_junction.config.load import load, without_file
    from mcp_junction.upstream.child_env import is_circular

    environ = variables()
    options: dict[str, Any] = {key: getattr(args, key, None) for key in _SETTINGS}
    if not args.config:
        if service:
            demo = _demo_servers() if args.demo else {}
            return without_file(environ, options, demo, read_service_dotenv(args))
        raise UsageError("--config FILE is needed: the mcpServers file to serve")
    config = load(args.config, environ, options, lenient=lenient or service)
    if is_circular(environ, config.identity):
        raise UsageError(
            f"circular reference: {args.config} is already being served by an aggregator above"
            " this one; remove the entry that starts mcp-junction with this file"
        )
    return config


def read_service_dotenv(args: argparse.Namespace) -> dict[str, str]:
    """Read the ``.env`` beside the config file, or in the data directory without one."""
    config = getattr(args, "config", None)
    folder = os.path.dirname(config) if config else data_dir(args)
    return read_dotenv(os.path.join(folder, ".env"))


def read_service_settings(args: argparse.Namespace) -> Settings:
    """Read the settings of a service without a file, for a command that works on its store."""
    from mcp_junction.config.load import without_file

    return without_file(variables(), {}, {}, read_service_dotenv(args)).settings


def _demo_servers() -> dict[str, Any]:
    """Make the config entries of the demo servers."""
    from mcp_junction.demo import DEMOS

    return {
        name: {"command": sys.executable, "args": ["-m", module]} for name, module in DEMOS.items()
    }


def set_up_logging(args: argparse.Namespace) -> None:
    """Log warnings and errors to stderr, or everything with --debug; and to the --log-file.

    From now on writing to stderr never blocks.
    """
    import logging  # --help does not need it

    from mcp_junction.cli.stderr import RedactingFormatter, take_stderr

    take_stderr()
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    if args.log_file:
        try:
            handlers.append(logging.FileHandler(args.log_file, encoding="utf-8"))
        except OSError as error:
            raise UsageError(f"--log-file {args.log_file}: {error.strerror}") from None
    formatter = RedactingFormatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    for handler in handlers:
        handler.setFormatter(formatter)
    level = logging.DEBUG if args.debug else logging.WARNING
    logging.basicConfig(level=level, handlers=handlers)


def add_data_dir(options: argparse._ActionsContainer) -> None:
    options.add_argument(
        "--data-dir", metavar="DIR", help=f"the data directory (default: {default_data_dir()})"
    )


def add_store_options(options: argparse._ActionsContainer) -> None:
    add_data_dir(options)
    options.add_argument(
        "--store",
        metavar="URL",
        help="sqlite:///PATH or postgresql://… (default: junction.db in the data directory)",
    )


add_json = option("--json", action="store_true", help="print JSON")


def data_dir(args: argparse.Namespace) -> Path:
    """Return the data directory that the options, or else the environment, name."""
    from pathlib import Path  # late: the stdio mode does not need it

    return Path(args.data_dir or os.environ.get("JUNCTION_DATA_DIR") or default_data_dir())


def default_data_dir() -> str:
    base = os.environ.get("XDG_DATA_HOME") or os.path.join("~", ".local", "share")
    if sys.platform == "darwin":
        base = os.path.join("~", "Library", "Application Support")
    return os.path.expanduser(os.path.join(base, "mcp-junction"))
