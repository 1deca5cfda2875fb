"""Registration: a server as it is registered at run time, checked to the last character.

Stricter than the config file, whose author runs the program anyway: unknown fields are refused, and
so is what reads as something else than it is. Everything that is wrong is reported together, each
with its place, and no value is quoted: it may be a secret. ``${VAR}`` stays as it is written; it is
replaced when the server is connected (``definition_of``). Whether an address or program is allowed
is policy (``policy/outgoing.py``, ``policy/programs.py``).
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any, Final, NoReturn

import msgspec

from mcp_junction.config.auth import TOKEN_EXCHANGE, read_auth, read_type
from mcp_junction.config.document import child_path
from mcp_junction.config.servers import OPTIONS, ServerDefinition
from mcp_junction.config.settings import DEFAULTS, Settings, limits_of
from mcp_junction.config.urls import check_headers, parse_url
from mcp_junction.config.variables import describe_missing, expand, find_references, is_own_variable
from mcp_junction.errors import Problem, ProblemCode, invalid_at

TRANSPORTS: Final = ("STDIO", "SSE", "HTTP")
UNCONNECTED: Final = "NONE"
"""The transport of a server that was registered with its tools alone, without a connection."""
_NO_CONNECTION: Final = "it was registered without a connection; register it again with one"
CHANGEABLE: Final = (
    "name", "description", "connection_config", "health_check_url", "enabled", *OPTIONS,
)  # fmt: skip
_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_HALF: Final = re.compile(rb"\\u[dD][89abAB]|\\u[dD][c-fC-F]")
_REFERENCE: Final = r"\$\{[^}]*\}|\$[A-Z_][A-Z0-9_]*"
_MANY: Final = 1_000
_LONG: Final = 32_768


class ConnectionConfig(msgspec.Struct, frozen=True, omit_defaults=True):
    """How to reach a server; which of it is needed depends on the transport."""

    command: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str | None = None
    url: str | None = None
    base_url: str | None = None
    headers: dict[str, str] = {}
    auth: dict[str, Any] | None = None

    def __repr__(self) -> str:
        """Without what may hold a secret."""
        return "ConnectionConfig(…)"


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of OPTIONS, with their types: of a registration, a record and a REST model."""

    isolation: str = OPTIONS["isolation"].default
    pin: str = OPTIONS["pin"].default
    trust_annotations: bool = False
    trust_retry_after: bool = False
    allow_private: bool = False
    allow_http: bool = False
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    timeout_ms: int = 0


class Registration(ServerOptions, frozen=True):
    """A server as an administrator registers it."""

    name: str
    transport_type: str
    connection_config: ConnectionConfig
    description: str = ""
    auto_connect: bool = True
    health_check_url: str | None = None
    enabled: bool = True


def parse_body(body: bytes) -> tuple[Any, list[Problem]]:
    """The JSON of a request, read in the one way that leaves no doubt."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(made := dict(pairs)) != len(pairs):
            raise ValueError("a key is given twice")
        return made

    def never(_: str) -> NoReturn:
        raise ValueError("a number makes no sense")

    try:
        value = json.loads(body, object_pairs_hook=once, parse_constant=never)
        if _HALF.search(body) is not None:
            json.dumps(value, ensure_ascii=False).encode()  # half a character cannot be said
    except (ValueError, RecursionError) as error:
        words = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        if isinstance(error, UnicodeError):
            words = "it is not UTF-8"
        elif isinstance(error, RecursionError):
            words = "it is nested too deeply"
        return None, [Problem(ProblemCode.INVALID_JSON, "$", f"is not usable JSON: {words}")]
    return value, []


def read_registration(
    body: Any, *, needs_connection: bool = True
) -> tuple[Registration | None, list[Problem]]:
    """A registration from a decoded body, or everything that is wrong with it."""
    problems = _unknown(body, Registration.__struct_fields__, "$")
    if isinstance(body, dict):
        fields = ConnectionConfig.__struct_fields__
        problems += _unknown(body.get("connection_config", {}), fields, "$.connection_config")
    if problems:
        return None, problems
    try:
        made = msgspec.convert(body, Registration)
    except msgspec.ValidationError as error:
        words, _, place = str(error).partition(" - at `")
        return None, [invalid_at(place.rstrip("`") or "$", f"is not right: {words}")]
    made = msgspec.structs.replace(made, transport_type=made.transport_type.upper())
    problems = _Checked(made, needs_connection=needs_connection).problems
    return (None, problems) if problems else (made, [])


def read_change(
    current: Registration, body: Any, changeable: Iterable[str] = CHANGEABLE
) -> tuple[Registration | None, list[Problem]]:
    """The registration after a change of some of its fields."""
    if not isinstance(body, dict):
        return None, [invalid_at("$", "must be an object")]
    problems = _unknown(body, changeable, "$")
    if problems:
        return None, problems
    needs_connection = current.transport_type != UNCONNECTED
    whole = {**msgspec.to_builtins(current), **body}
    return read_registration(whole, needs_connection=needs_connection)


def definition_of(
    registration: Registration, variables: Mapping[str, str], settings: Settings = DEFAULTS
) -> tuple[ServerDefinition, list[Problem]]:
    """How to connect now, with variables replaced; and which of them are not set.

    Those stay as they are written, and the definition has them as its fault.
    """
    missing: list[Problem] = []
    used: dict[str, str] = {}
    config, root = registration.connection_config, "$.connection_config"

    def filled(text: str, path: str) -> str:
        found, names = expand(text, variables, used)
        missing.extend(
            Problem(ProblemCode.MISSING_ENV_VAR, path, describe_missing(name), name)
            for name in names
        )
        return found

    def each(values: Mapping[str, str], name: str) -> dict[str, str]:
        path = child_path(root, name)
        return {key: filled(value, child_path(path, key)) for key, value in values.items()}

    url = "base_url" if config.url is None else "url"
    definition = ServerDefinition(
        key=registration.name,
        transport=registration.transport_type.lower(),
        command=filled(config.command or "", f"{root}.command"),
        args=tuple(filled(arg, f"{root}.args[{n}]") for n, arg in enumerate(config.args)),
        env=each(config.env, "env"),
        cwd=None if config.cwd is None else filled(config.cwd, f"{root}.cwd"),
        url=filled(getattr(config, url) or "", f"{root}.{url}"),
        headers=each(config.headers, "headers"),
        auth=read_auth(
            config.auth, lambda text, name: filled(text, f"{root}.auth.{name}"), _ignore
        ),
        variables=used,
        restart=True,
        limits=limits_of(settings),
        is_registered=True,
    )
    options = {name: getattr(registration, name) for name in definition.options}
    fault = _NO_CONNECTION if registration.transport_type == UNCONNECTED else definition.fault
    if missing:
        fault = "; ".join(f"{problem.path}: {problem.message}" for problem in missing)
    unset = tuple(p.variable for p in missing if p.variable is not None)
    return definition._replace(**options, fault=fault, missing=unset), missing


class _Checked:
    """Everything that is wrong with a registration whose types are right."""

    def __init__(self, registration: Registration, *, needs_connection: bool = True) -> None:
        self.problems: list[Problem] = []
        self._transports = TRANSPORTS if needs_connection else (*TRANSPORTS, UNCONNECTED)
        self._general(registration)
        config = registration.connection_config
        for name, text in _every_text(registration):
            self._readable(text, name)
        if registration.transport_type == "STDIO":
            self._process(config)
        elif registration.transport_type in TRANSPORTS:
            self._remote(config, registration.transport_type)
        elif config != ConnectionConfig():
            self._wrong("$.connection_config", _NO_CONNECTION)

    def _general(self, made: Registration) -> None:
        if not _NAME.fullmatch(made.name):
            words = "must be a lower-case letter, then at most 62 of a-z, 0-9, '_' and '-'"
            self._wrong("$.name", words)
        elif _UUID.fullmatch(made.name):
            self._wrong("$.name", "must not look like an id")
        if made.transport_type not in self._transports:
            self._wrong("$.transport_type", f"must be one of {', '.join(TRANSPORTS)}")
        for name, option in OPTIONS.items():
            value = getattr(made, name)
            if option.choices and value not in option.choices:
                self._wrong(f"$.{name}", f"must be one of {', '.join(option.choices)}")
            if option.is_path and value and (not _is_full(value) or "$" in value):
                self._wrong(f"$.{name}", "must be the full path of a file, without '..'")
            if option.most and not 0 <= value <= option.most:
                self._wrong(f"$.{name}", "must be milliseconds: 0 (none) up to a day")
        if made.health_check_url is not None:
            self._url(made.health_check_url, "$.health_check_url", filled=True)

    def _process(self, config: ConnectionConfig) -> None:
        self._foreign(config, ("url", "base_url", "headers", "auth"), "STDIO")
        if not config.command or not config.command.strip():
            self._wrong("$.connection_config.command", "is missing: name the program to run")
        elif ".." in PurePath(config.command).parts:
            self._wrong("$.connection_config.command", "must not go up with '..'")
        cwd = config.cwd
        if cwd is not None and not _is_full(cwd):
            self._wrong("$.connection_config.cwd", "must be a full path without '..'")
        for name in config.env:
            if not _VARIABLE.fullmatch(name):
                path = child_path("$.connection_config.env", name)
                self._wrong(path, "is not a usable name of a variable")
        if len(config.args) > _MANY or len(config.env) > _MANY:
            self._wrong("$.connection_config", f"has more than {_MANY} arguments or variables")

    def _remote(self, config: ConnectionConfig, transport: str) -> None:
        self._foreign(config, ("command", "args", "env", "cwd"), transport)
        given = {name: getattr(config, name) for name in ("url", "base_url")}
        if transport == "SSE":
            self._foreign(config, ("base_url",), transport)
        if transport == "HTTP" and None not in given.values():
            self._wrong("$.connection_config", "has both a url and a base_url; keep one")
        if not any(given.values()):
            self._wrong("$.connection_config.url", "is missing: give the address of the server")
        for name, url in given.items():
            if url:
                self._url(url, f"$.connection_config.{name}")
        if isinstance(config.auth, dict) and "assertion_file" in map(str.lower, config.auth):
            words = (
                "can be given in the config file only: what the file holds is sent to the issuer"
            )
            self._wrong("$.connection_config.auth.assertion_file", words)
        if read_type(config.auth) == TOKEN_EXCHANGE:
            words = "token_exchange is for the config file only: callers' tokens go to its issuer"
            self._wrong("$.connection_config.auth.type", words)
        auth_path = "$.connection_config.auth"
        read_auth(
            config.auth,
            lambda text, _: text,
            lambda name, fault: self._wrong(f"{auth_path}.{name}" if name else auth_path, fault),
        )
        for name, value in config.headers.items():
            try:
                check_headers({name: "" if "$" in value else value})
            except ValueError:
                path = child_path("$.connection_config.headers", name)
                self._wrong(path, "is Junction's own to set, or cannot be sent")

    def _foreign(self, config: ConnectionConfig, names: Iterable[str], transport: str) -> None:
        for name in names:
            if getattr(config, name):
                path = f"$.connection_config.{name}"
                self._wrong(path, f"does not belong to a server by {transport}")

    def _url(self, url: str, path: str, *, filled: bool = False) -> None:
        """``filled`` is one without variables: a dollar sign in it is just that."""
        if url.startswith("$") and not filled:
            return  # what it is will be seen when it is replaced
        try:
            parse_url(url if filled else _supposed(url))
        except ValueError as error:
            self._wrong(path, str(error))

    def _readable(self, text: str, path: str) -> None:
        """No text may hide something, or say something that cannot be said."""
        loose = path.startswith(("$.connection_config.args", "$.connection_config.env"))
        if any(_is_hidden(char, loose) for char in text):
            self._wrong(path, "must not contain control characters or invisible ones")
        if len(text) > _LONG:
            self._wrong(path, f"is longer than {_LONG} characters")
        if any(map(is_own_variable, find_references(text))):
            words = "must not use Junction's own variables, PGPASSWORD among them"
            self._wrong(path, f"{words}; use one of another name")

    def _wrong(self, path: str, message: str) -> None:
        self.problems.append(invalid_at(path, message))


def _every_text(made: Registration) -> Iterable[tuple[str, str]]:
    """Every free text in a registration, with its place."""
    config, root = made.connection_config, "$.connection_config"
    yield "$.description", made.description
    for name in (name for name, option in OPTIONS.items() if option.is_path):
        yield f"$.{name}", getattr(made, name)
    yield "$.health_check_url", made.health_check_url or ""
    for name in ("command", "cwd", "url", "base_url"):
        yield f"{root}.{name}", getattr(config, name) or ""
    for number, arg in enumerate(config.args):
        yield f"{root}.args[{number}]", arg
    texts = {k: v for k, v in (config.auth or {}).items() if isinstance(v, str)}
    for name, values in (("env", config.env), ("headers", config.headers), ("auth", texts)):
        for key, value in values.items():
            yield child_path(f"{root}.{name}", key), value


def _is_full(path: str) -> bool:
    pure = PurePath(path)
    return ".." not in pure.parts and (pure.is_absolute() or path.startswith("$"))


def _supposed(url: str) -> str:
    """A url with something ordinary in the place of its variables."""
    url = re.sub(rf":({_REFERENCE})(?=[/?#]|$)", ":80", url)
    return re.sub(_REFERENCE, "x", url)


def _is_hidden(char: str, loose: bool) -> bool:
    if " " <= char <= "~":
        return False
    category = unicodedata.category(char)
    if category in ("Cs", "Cn") or char == "\0":
        return True
    if char in "\t\n":
        return False
    return not loose and category in ("Cc", "Cf", "Co", "Zl", "Zp")


def _unknown(body: Any, known: Iterable[str], path: str) -> list[Problem]:
    if not isinstance(body, dict):
        return [invalid_at(path, "must be an object")]
    return [
        invalid_at(child_path(path, str(key)[:64]), "is not a field that is known here")
        for key in body
        if key not in known
    ]


def _ignore(name: str, fault: str) -> None:
    """Do nothing: what is wrong was reported when it was registered."""
