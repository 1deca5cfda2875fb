"""ServerDefinition: one server, checked and expanded; OPTIONS: what an operator may set for it.

OPTIONS is the one table of a server's options. The config file and REST are read and checked by it;
``config/registration.py`` has the same fields with their types, which the record in the store and
the REST models take from there.

The checks here say what is wrong, where, and never quote a value: it may be a secret. What keys of
other clients mean is in ``config/client_dialects.py``; keys that nobody knows are ignored.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from mcp_junction.config import client_dialects as client_keys
from mcp_junction.config.auth import ServerAuth, read_auth
from mcp_junction.config.client_dialects import ToolSelection, read_selection
from mcp_junction.config.document import child_path
from mcp_junction.config.settings import DEFAULT_LIMITS, Limits, Settings, is_writable, limits_of
from mcp_junction.config.variables import describe_missing, expand, read_dotenv, variable_fault
from mcp_junction.errors import Problem, ProblemCode, invalid_at

ISOLATIONS = ("shared", "per-session")
PINS = ("off", "warn", "strict")
LONGEST_TIMEOUT = 24 * 3600 * 1000


class ServerOption(NamedTuple):
    """What an option may be, and where it is read."""

    default: Any
    """Has the option's type: text, a flag or a whole number."""
    choices: tuple[str, ...] = ()
    most: int = 0
    is_path: bool = False
    file_key: str = ""
    """Its name in the config file, if that is another."""
    file_default: Any = None
    """Its default in the config file, if that is another."""
    is_common: bool = False
    """Whether other clients have it, too: then it is also read outside of ``junction``."""
    reconnects: bool = False
    """Whether a change of it needs a new connection."""


OPTIONS: Mapping[str, ServerOption] = {
    "isolation": ServerOption(ISOLATIONS[0], ISOLATIONS, reconnects=True),
    "pin": ServerOption("warn", PINS),
    "trust_annotations": ServerOption(False),
    "trust_retry_after": ServerOption(False),
    # Who writes the file is who runs the program: nothing to protect, unless they say so.
    "allow_private": ServerOption(False, file_default=True, reconnects=True),
    "allow_http": ServerOption(False, file_default=True, reconnects=True),
    "tls_ca": ServerOption("", is_path=True, reconnects=True),
    "tls_cert": ServerOption("", is_path=True, reconnects=True),
    "tls_key": ServerOption("", is_path=True, reconnects=True),
    "timeout_ms": ServerOption(0, most=LONGEST_TIMEOUT, file_key="timeout", is_common=True),
}

_CONNECTING = ("command", "args", "env", "cwd", "url", "headers", "auth")
_TRANSPORTS = {
    "stdio": "stdio",
    "http": "http",
    "streamable-http": "http",
    "streamablehttp": "http",
    "streamable_http": "http",
    "sse": "sse",
}


class ServerDefinition(NamedTuple):
    """How to reach one server, and what the operator says about it."""

    key: str
    transport: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    cwd: str | None = None
    url: str = ""
    headers: Mapping[str, str] = {}
    auth: ServerAuth | None = None
    timeout_ms: int = 0
    restart: bool | None = None
    isolation: str = OPTIONS["isolation"].default
    tools: ToolSelection | None = None
    trust_annotations: bool = False
    """Whether what its tools say of themselves, that they only read or can be repeated, is true."""
    trust_retry_after: bool = False
    """Whether it has not run what it refuses with HTTP 503 and Retry-After."""
    allow_private: bool = False
    allow_http: bool = False
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    """Files: what its certificate must lead to, and the certificate and key that we show it."""
    pin: str = OPTIONS["pin"].default
    limits: Limits = DEFAULT_LIMITS
    variables: Mapping[str, str] = {}
    """The variables that it was expanded with: what they hold may be a secret."""
    id: str = ""
    """Under which the store knows it, where there is one."""
    fault: str = ""
    """Why it cannot be connected to as it is; empty when it can."""
    missing: tuple[str, ...] = ()
    """The variables it refers to that are not set."""
    file_entry: Mapping[str, Any] = {}
    """How to reach it, as the config file has it: variables are not replaced. Only to be shown."""
    is_registered: bool = False
    """Whether it was registered at run time: what it may do is judged more strictly."""

    @property
    def options(self) -> dict[str, Any]:
        """Its values of OPTIONS, as far as it has them."""
        return {name: getattr(self, name) for name in OPTIONS if name in self._fields}

    @property
    def is_per_agent(self) -> bool:
        """Whether each agent has a credential of its own for it."""
        return self.auth is not None and self.auth.is_per_agent

    @property
    def runs_once(self) -> bool:
        """Whether it is a program that all clients share: one process, and so one era."""
        return self.transport == "stdio" and self.isolation == "shared"

    def __repr__(self) -> str:
        """Without what may hold a secret: env, headers, args and url."""
        return f"ServerDefinition(key={self.key!r}, transport={self.transport!r})"


class Options(NamedTuple):
    """Some options of one server, and where in the file they stand."""

    values: Any
    path: str


class EntryReader:
    """Reads one entry; collects what is wrong with it instead of stopping at the first fault."""

    def __init__(self, key: str, path: str, variables: Mapping[str, str], folder: str = "") -> None:
        self.key = key
        self.path = path
        self.variables = variables
        self.folder = folder
        """Where the file stands that the entry is from: an ``envFile`` may be relative to it."""
        self.problems: list[Problem] = []
        self._used: dict[str, str] = {}

    def read(
        self, entry: Any, extra: Options, settings: Settings, *, lenient: bool = False
    ) -> ServerDefinition | None:
        """The definition, or None when the entry is disabled or has problems.

        ``lenient``: a variable that is not set, or a missing ``envFile``, is no problem of the
        whole file: the definition carries it as its fault.
        """
        if not isinstance(entry, dict):
            self._wrong(self.path, "must be an object with a command or a url")
            return None
        if not self.key or not is_writable(self.key, "strict"):
            self._wrong(self.path, "the key of a server must be some text")
        inline = Options(self._object(entry, "junction"), child_path(self.path, "junction"))
        own = [self._checked(extra), inline]
        everything = [*own, Options(entry, self.path)]
        switches = [self._flag(options, "disabled") for options in everything]
        if True in switches or client_keys.is_switched_off(entry):
            return None
        transport = self._transport(entry, stdio_only=settings.stdio_only)
        definition = ServerDefinition(
            key=self.key,
            transport=transport,
            **self._options(own, everything),
            restart=self._restart(_first_with("restart", own)),
            tools=self._tools(_first_with("tools", own), entry),
            limits=self._limits(_first_with("limits", own), settings),
            **(self._process(entry) if transport == "stdio" else self._remote(entry)),
            variables={
                name: value
                for name, value in self._used.items()
                if name not in client_keys.WORKSPACE_VARIABLES
            },
            file_entry={name: entry[name] for name in _CONNECTING if entry.get(name)},
        )
        missing = [p for p in self.problems if p.code is not ProblemCode.INVALID_SCHEMA]
        if lenient and missing == self.problems:
            fault = "; ".join(f"{problem.path}: {problem.message}" for problem in missing)
            names = tuple(p.variable for p in missing if p.variable is not None)
            return definition._replace(fault=fault, missing=names)
        return None if self.problems else definition

    def _transport(self, entry: dict[str, Any], *, stdio_only: bool) -> str:
        declared = entry.get("type", entry.get("transport"))
        url = entry.get(client_keys.url_key(entry))
        guess = "http" if url is not None and not entry.get("command") else "stdio"
        transport = _TRANSPORTS.get(str(declared).lower()) if declared is not None else guess
        if transport is None:
            self._wrong(child_path(self.path, "type"), "must be stdio, http or sse")
            return guess
        if entry.get("command") and url and declared is None:
            self._wrong(self.path, "has both a command and a url; keep one, or say which by type")
        if transport != "stdio" and stdio_only:
            self._wrong(self.path, "is a remote server, and --stdio-only allows none; remove one")
        return transport

    def _process(self, entry: dict[str, Any]) -> dict[str, Any]:
        args = entry.get("args")
        path = child_path(self.path, "args")
        if args is not None and not isinstance(args, list):
            self._wrong(path, "must be an array of strings")
            args = None
        cwd = self._text(entry, "cwd") if entry.get("cwd") is not None else None
        env = {**self._env_file(entry), **self._strings(entry, "env", variable_fault)}
        # Some programs replace variables in their arguments themselves, by what they are given.
        self.variables = {**env, **self.variables}
        return {
            "command": self._text(entry, "command", needed="name the program to run"),
            "args": tuple(
                self._expanded(value, child_path(path, index))
                for index, value in enumerate(args or ())
            ),
            "env": env,
            "cwd": cwd,
        }

    def _env_file(self, entry: dict[str, Any]) -> dict[str, str]:
        """The variables of ``envFile``, as VS Code and Cursor have it; ``env`` goes before them."""
        if entry.get("envFile") is None:
            return {}
        before = len(self.problems)
        name = self._text(entry, "envFile")
        if len(self.problems) > before:
            return {}
        path = os.path.join(self.folder, os.path.expanduser(name))
        if not os.path.isfile(path):
            where, words = child_path(self.path, "envFile"), "there is no such file; check the path"
            self.problems.append(Problem(ProblemCode.FILE_NOT_FOUND, where, words))
        return read_dotenv(path)

    def _remote(self, entry: dict[str, Any]) -> dict[str, Any]:
        # Imported where they are used: most configs have no remote server.
        from mcp_junction.config.urls import AmbiguousUrl, header_fault, parse_url

        before = len(self.problems)
        key = client_keys.url_key(entry)
        url = self._text(entry, key, needed="give the address of the server")
        if len(self.problems) == before:
            try:
                parse_url(url)
            except AmbiguousUrl:
                pass  # other programs take it: only this server will not be connected to
            except ValueError as error:
                self._wrong(child_path(self.path, key), str(error))
        path = child_path(self.path, "auth")
        auth = read_auth(
            entry.get("auth"),
            lambda text, name: self._expanded(text, child_path(path, name) if name else path),
            lambda name, fault: self._wrong(child_path(path, name) if name else path, fault),
        )
        headers = self._strings(entry, "headers", header_fault)
        return {"url": url, "headers": headers, "auth": auth}

    def _text(self, entry: dict[str, Any], name: str, needed: str = "must not be empty") -> str:
        path = child_path(self.path, name)
        if name not in entry:
            self._wrong(path, f"is missing: {needed}")
            return ""
        text = self._expanded(entry[name], path)
        if not text and isinstance(entry[name], str):
            self._wrong(path, f"is empty: {needed}")
        return text

    def _strings(
        self, entry: dict[str, Any], name: str, fault_of: Callable[[str, str], str | None]
    ) -> dict[str, str]:
        root = child_path(self.path, name)
        found: dict[str, str] = {}
        for key, value in self._object(entry, name).items():
            path, before = child_path(root, key), len(self.problems)
            text = found[key] = self._expanded(value, path)
            has_value = len(self.problems) == before
            fault = fault_of(key, text if has_value else "")
            if fault is not None:
                self._wrong(path, fault)
        return found

    def _object(self, entry: dict[str, Any], name: str) -> dict[str, Any]:
        value = entry.get(name)
        if value is None:
            return {}
        if isinstance(value, dict):
            return value
        self._wrong(child_path(self.path, name), "must be an object")
        return {}

    def _expanded(self, value: Any, path: str) -> str:
        if not isinstance(value, str):
            self._wrong(path, "must be a string (put it in quotes)")
            return ""
        text, missing = expand(value, self.variables, self._used)
        for name in missing:
            problem = Problem(ProblemCode.MISSING_ENV_VAR, path, describe_missing(name), name)
            self.problems.append(problem)
        if "\0" in text or not is_writable(text, "surrogateescape"):
            self._wrong(path, "must not contain a NUL character or half a surrogate pair")
        return text

    def _checked(self, extra: Options) -> Options:
        if isinstance(extra.values, dict):
            return extra
        self._wrong(extra.path, "must be an object")
        return Options({}, extra.path)

    def _options(self, own: list[Options], everything: list[Options]) -> dict[str, Any]:
        """Read what OPTIONS names."""
        found: dict[str, Any] = {}
        for name, option in OPTIONS.items():
            key = option.file_key or name
            where = _first_with(key, everything if option.is_common else own)
            found[name] = self._option(where, key, option)
        return found

    def _option(self, where: Options, key: str, option: ServerOption) -> Any:
        default = option.default if option.file_default is None else option.file_default
        if option.choices:
            return self._choice(where, key, option.choices, default)
        if isinstance(default, bool):
            return self._flag(where, key, default)
        if option.is_path:
            path = self._expanded(where.values.get(key, ""), child_path(where.path, key))
            return os.path.join(self.folder, os.path.expanduser(path)) if path else ""
        return self._number(where, key, default)

    def _number(self, options: Options, name: str, default: int) -> int:
        value = options.values.get(name, default)
        if type(value) is not int or value < 0:
            self._wrong(child_path(options.path, name), "must be a whole number of milliseconds")
            return 0
        return value

    def _restart(self, options: Options) -> bool | None:
        return self._flag(options, "restart") if "restart" in options.values else None

    def _choice(self, options: Options, name: str, choices: tuple[str, ...], default: str) -> str:
        value = options.values.get(name, default)
        if value not in choices:
            words = " or ".join((", ".join(choices[:-1]), choices[-1]))
            self._wrong(child_path(options.path, name), f"must be {words}")
            return default
        return str(value)

    def _limits(self, options: Options, settings: Settings) -> Limits:
        values = options.values.get("limits") or {}
        known = Limits._fields
        if not isinstance(values, dict) or not all(
            name in known and type(value) is int and value >= 0 for name, value in values.items()
        ):
            words = f"must be an object of whole numbers: {', '.join(known)}"
            self._wrong(child_path(options.path, "limits"), words)
            return DEFAULT_LIMITS
        return limits_of(settings, **values)

    def _tools(self, options: Options, entry: dict[str, Any]) -> ToolSelection | None:
        client, faulty = client_keys.read_tool_lists(entry)
        for key in faulty:
            self._wrong(child_path(self.path, key), "must be an array of names of tools")
        return client_keys.merge_selections(self._selection(options), client)

    def _selection(self, options: Options) -> ToolSelection | None:
        value = options.values.get("tools")
        path = child_path(options.path, "tools")
        if value is None:
            return None
        if not isinstance(value, dict):
            self._wrong(path, "must be an object with allow, deny or rename")
            return None
        selection = read_selection(value)
        if selection is None:
            self._wrong(path, "allow and deny are arrays of names, rename an object of names")
        return selection

    def _flag(self, options: Options, name: str, default: bool = False) -> bool:
        value = options.values.get(name, default)
        if not isinstance(value, bool):
            self._wrong(child_path(options.path, name), "must be true or false")
            return False
        return value

    def _wrong(self, path: str, message: str) -> None:
        self.problems.append(invalid_at(path, message))


def _first_with(name: str, places: list[Options]) -> Options:
    """The options that say something about ``name``; the last of them when none does."""
    return next((options for options in places if name in options.values), places[-1])
