"""Settings of the process: their names, defaults and environment variables.

Limits and Quota are the parts that are compared on every call: plain numbers, where no limit is a
very large one. Settings do not change while the process runs. Where their values come from, and
which values are allowed, is in ``merge.py``.
"""

from __future__ import annotations

import sys
from typing import Final, NamedTuple

from mcp_junction import __version__
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
FORMER_NAMES = {"audit_retention_days": "audit_days"}
"""Earlier names of settings, which are still read, also with ``JUNCTION_`` as a variable."""
ON, WARN = "on", "warn"
VALIDATIONS = ("off", WARN, ON)
"""Whether arguments are checked against the schema of their tool, and refused if they are wrong."""
NAMINGS = ("canonical", "strict")
ALL, SEARCH, AUTO = "all", "search", "auto"
EXPOSURES = (ALL, SEARCH, AUTO)
"""What is listed to clients: all tools, or the three that search, describe and call them; or one of
these, by how many tokens all tools would take."""
AUDIT_MODES = ("normal", "strict", "off")
OFFLINE, OFF = "offline", "off"
CLASSIFIERS = (OFFLINE, OFF)
LLM_PROVIDERS = (OFF, "openai", "anthropic")
"""Whether tools are classified by skills, and the kind of endpoint that an LLM is asked at."""
EMBEDDING_PROVIDERS = (AUTO, "static", "minilm", "openai")
"""What embeds texts for search, beside the static table: MiniLM where it is installed, or no other
model, or an endpoint."""


class Settings(NamedTuple):
    """Every setting, with its default. The names are those of the ``"junction"`` object."""

    name: str = "mcp-junction"
    version: str = __version__
    separator: str | None = None
    prefix: str = "always"
    names: str = "canonical"
    exposure: str = ALL
    exposure_tokens: int = 8_000
    favourites: str = ""
    result_tokens: int = 0
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
    public_url: str = ""
    tls_cert: str = ""
    tls_key: str = ""
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
    vector_store: str = AUTO
    embedding_provider: str = AUTO
    embedding_base_url: str = ""
    embedding_api_key: str = ""
    embedding_model: str = ""
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
    approval_wait_ms: int = 0
    otlp_endpoint: str = ""
    otlp_sample: float = 0.01
    webhook_url: str = ""
    webhook_secret: str = ""
    webhook_allow_private: bool = False
    validate: str = WARN
    validate_invoke: str = ON
    strict_schemas: bool = False
    limit_agent: str = ""
    limit_server: str = ""
    limit_tool: str = ""
    audit: str = "normal"
    audit_retention_days: int = 90
    classifier: str = OFFLINE
    llm_provider: str = OFF
    llm_base_url: str = ""
    llm_api_key: str = ""
    llm_model: str = ""
    watch_config: bool = True


def variable_of(name: str) -> str:
    """Return the environment variable of a setting."""
    return VARIABLE_NAMES.get(name, f"JUNCTION_{name.upper()}")


def changed_settings(old: Settings, new: Settings) -> tuple[str, ...]:
    """Name the settings that differ."""
    pairs = zip(Settings._fields, old, new, strict=True)
    return tuple(name for name, before, after in pairs if before != after)


def is_writable(text: str, errors: str = "strict") -> bool:
    """Whether a text can be encoded as UTF-8: one from the environment may hold other bytes."""
    try:
        text.encode("utf-8", errors)
    except UnicodeEncodeError:
        return False
    return True


DEFAULTS = Settings()
