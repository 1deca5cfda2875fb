"""Settings of the process: command line > environment > ``"junction"`` in the file > default.

Limits and Quota are the parts that are compared on every call: plain numbers, where no limit is a
very large one. Settings do not change while the process runs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from mcp_junction import __version__
from mcp_junction.errors import Problem, ProblemCode
from mcp_junction.protocol.versions import DEFAULT_LIMIT, DEFAULT_PAGE_SIZE


class Limits(NamedTuple):
    """What one link to a server may hold at once."""

    calls: int = 10_000
    """Calls that it has not answered yet."""
    queue: int = 10_000
    """Requests that wait for a connection to it."""
    bytes: int = 64 * 1024 * 1024
    """Bytes of requests that it has not taken yet."""


DEFAULT_LIMITS: Final = Limits()


class Quota(NamedTuple):
    """What one principal may use at once."""

    sessions: int = sys.maxsize
    streams: int = sys.maxsize
    calls: int = sys.maxsize
    """Calls in flight."""
    parked: int = sys.maxsize
    """Calls that wait for the answer to their server's question."""
    bytes: int = sys.maxsize
    """Bytes that wait to be written to its clients, or are kept for them."""


UNLIMITED: Final = Quota()


def quota_of(settings: Settings) -> Quota:
    """Make the quota of each principal; a setting of 0 is no limit."""
    chosen = (
        settings.max_sessions_per_principal,
        settings.max_streams_per_principal,
        settings.max_calls_per_principal,
        settings.max_parked_per_principal,
        settings.max_bytes_per_principal,
    )
    return Quota(*(limit or sys.maxsize for limit in chosen))


def limits_of(settings: Settings, **own: int) -> Limits:
    """Make the limits of a server: its own, or the settings; 0 is no limit."""
    chosen = {
        "calls": settings.max_calls_per_server,
        "queue": settings.max_queue_per_server,
        "bytes": settings.max_bytes_per_server,
        **own,
    }
    return Limits(**{name: value or sys.maxsize for name, value in chosen.items()})


PREFIX_MODES = ("always", "auto", "never")
VARIABLE_NAMES = {
    name: f"MCP_{name.upper()}"
    for name in (
        "retry_max_attempts",
        "retry_base_ms",
        "retry_factor",
        "retry_max_delay_ms",
        "circuit_failure_threshold",
        "circuit_cooldown",
        "circuit_half_open_max",
        "token_ttl_minutes",
        "auth_cache_ttl",
        "invocation_timeout_ms",
        "audit_retention_days",
    )
}
"""Settings whose environment variable is not ``JUNCTION_`` and their name."""
ON, WARN = "on", "warn"
VALIDATIONS = ("off", WARN, ON)
"""Whether arguments are checked against the schema of their tool, and refused if they are wrong."""
FORMER_NAMES = {"audit_retention_days": "audit_days"}
"""Earlier names of settings, which are still read."""
NAMINGS = ("canonical", "strict")
ALL, SEARCH = "all", "search"
EXPOSURES = (ALL, SEARCH)
"""What is listed to clients: all tools, or the three that search, describe and call them."""
AUDIT_MODES = ("normal", "strict", "off")
OFFLINE, OFF = "offline", "off"
CLASSIFIERS = (OFFLINE, OFF)
"""Whether tools are classified by skills."""
_CHOICES = {
    "prefix": PREFIX_MODES,
    "names": NAMINGS,
    "exposure": EXPOSURES,
    "audit": AUDIT_MODES,
    "classifier": CLASSIFIERS,
    "validate": VALIDATIONS,
    "validate_invoke": VALIDATIONS,
}

_MOST: Final = 2**63
_SENT_TO_CLIENTS = ("name", "version", "separator")


class Settings(NamedTuple):
    """Every setting, with its default. The names are those of the ``"junction"`` object."""

    name: str = "mcp-junction"
    version: str = __version__
    separator: str | None = None
    prefix: str = "always"
    names: str = "canonical"
    exposure: str = ALL
    stdio_only: bool = False
    restart: bool = False
    inherit_env: bool = False
    list_wait_ms: int = 30_000
    start_timeout_ms: int = 30_000
    drain_ms: int = 5_000
    timeout: int = 0
    page_size: int = DEFAULT_PAGE_SIZE
    instructions_tokens: int = 2_000
    instructions_wait_ms: int = 1_000
    max_line_bytes: int = DEFAULT_LIMIT
    max_body_bytes: int = 4 * 1024 * 1024
    session_idle_ms: int = 30 * 60 * 1000
    list_ttl_ms: int = 0
    parked_ms: int = 10 * 60 * 1000
    require_key: bool = False
    allowed_hosts: str = ""
    allowed_origins: str = ""
    trusted_proxies: tuple[str, ...] = ()
    stdio_allow: str = ""
    max_sessions_per_principal: int = 10_000
    max_streams_per_principal: int = 2_000
    max_calls_per_principal: int = 1_000
    max_parked_per_principal: int = 1_000
    max_bytes_per_principal: int = 256 * 1024 * 1024
    max_calls_per_server: int = 10_000
    max_queue_per_server: int = 10_000
    max_bytes_per_server: int = 64 * 1024 * 1024
    health_interval_ms: int = 30_000
    health_timeout_ms: int = 5_000
    store: str = ""
    invocation_timeout_ms: int = 30_000
    idle_timeout_ms: int = 0
    retry_max_attempts: int = 3
    retry_base_ms: int = 500
    retry_factor: float = 2.0
    retry_max_delay_ms: int = 30_000
    circuit_failure_threshold: int = 5
    circuit_cooldown: int = 60
    circuit_half_open_max: int = 3
    token_ttl_minutes: int = 15
    auth_cache_ttl: int = 5
    validate: str = WARN
    validate_invoke: str = ON
    strict_schemas: bool = False
    limit_agent: str = ""
    limit_server: str = ""
    limit_tool: str = ""
    audit: str = "normal"
    audit_retention_days: int = 90
    classifier: str = OFFLINE
    watch_config: bool = True


def merge_settings(
    file: Mapping[str, Any], environ: Mapping[str, str], options: Mapping[str, Any]
) -> tuple[Settings, list[Problem]]:
    """Merge the settings of all three layers; return them, and the problems found."""
    problems: list[Problem] = []
    chosen: dict[str, Any] = {}
    for name in Settings._fields:
        default = getattr(DEFAULTS, name)
        for place, value in _layers(name, default, file, environ, options):
            try:
                chosen[name] = _check(name, value, default)
            except ValueError as error:
                problems.append(Problem(ProblemCode.INVALID_SCHEMA, place, str(error)))
    return DEFAULTS._replace(**chosen), problems


def _layers(
    name: str,
    default: Any,
    file: Mapping[str, Any],
    environ: Mapping[str, str],
    options: Mapping[str, Any],
) -> list[tuple[str, Any]]:
    """Return where a setting is given and its value there, the weakest place first."""
    former = FORMER_NAMES.get(name, name)
    names = (former, name) if former != name else (name,)
    variables = dict.fromkeys(
        (f"JUNCTION_{former.upper()}", VARIABLE_NAMES.get(name, f"JUNCTION_{name.upper()}"))
    )
    layers = [(f"$.junction.{key}", file[key]) for key in names if key in file]
    layers += [
        (f"environment {key}", _parse_text(environ[key], default))
        for key in variables
        if key in environ
    ]
    if options.get(name) is not None:
        layers.append((f"--{name.replace('_', '-')}", options[name]))
    return layers


def changed_settings(old: Settings, new: Settings) -> tuple[str, ...]:
    """Name the settings that differ."""
    pairs = zip(Settings._fields, old, new, strict=True)
    return tuple(name for name, before, after in pairs if before != after)


def _check(name: str, value: Any, default: Any) -> Any:
    """Return the value of a setting. Raises ValueError that says what it must be."""
    if isinstance(default, tuple):
        return _check_networks(value)
    kind = str if default is None else type(default)
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind or (isinstance(value, int | float) and not 0 <= value < _MOST):
        words = {
            int: "a whole number, 0 or more",
            float: "a number, 0 or more",
            bool: "true or false",
            str: "a string",
        }
        raise ValueError(f"must be {words[kind]}")
    if name in _CHOICES and value not in _CHOICES[name]:
        raise ValueError(f"must be one of {', '.join(_CHOICES[name])}")
    if name in _SENT_TO_CLIENTS and not is_writable(value):
        raise ValueError("must be text in UTF-8")
    if name == "separator" and not value:
        raise ValueError(
            "must be one character or more, such as ':' or '__'; without it clients get theirs"
        )
    return value


def is_writable(text: str, errors: str = "strict") -> bool:
    """Whether a text can be encoded as UTF-8: one from the environment may hold other bytes."""
    try:
        text.encode("utf-8", errors)
    except UnicodeEncodeError:
        return False
    return True


def _check_networks(value: Any) -> tuple[str, ...]:
    """Return addresses and networks, given as an array, or as words in one string."""
    # Imported late: few have proxies.
    from ipaddress import ip_network

    words = value.replace(",", " ").split() if isinstance(value, str) else value
    try:
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise ValueError
        for word in words:
            ip_network(word, strict=False)
    except ValueError:
        message = 'must be addresses or networks, like ["10.0.0.7", "192.168.0.0/16"]'
        raise ValueError(message) from None
    return tuple(words)


def _parse_text(text: str, default: Any) -> Any:
    if isinstance(default, bool):
        return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}.get(
            text.lower(), text
        )
    if isinstance(default, int):
        return int(text) if text.isdecimal() else text
    if isinstance(default, float):
        try:
            return float(text)
        except ValueError:
            return text
    return text


DEFAULTS = Settings()
