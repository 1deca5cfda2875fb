"""Merges settings: command line > environment > ``.env`` > ``"junction"`` in the file > default.

Each value is checked where it is given, also where a stronger place covers it. Which settings
there are is in ``settings.py``; reading the files is up to the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from mcp_junction.config.settings import (
    AUDIT_MODES,
    CLASSIFIERS,
    DEFAULTS,
    EMBEDDING_PROVIDERS,
    EXPOSURES,
    FORMER_NAMES,
    LLM_PROVIDERS,
    NAMINGS,
    OFF,
    PREFIX_MODES,
    VALIDATIONS,
    Settings,
    is_writable,
    variable_of,
)
from mcp_junction.errors import Problem, ProblemCode

CHOICES: Final = {
    "prefix": PREFIX_MODES,
    "names": NAMINGS,
    "exposure": EXPOSURES,
    "audit": AUDIT_MODES,
    "classifier": CLASSIFIERS,
    "llm_provider": LLM_PROVIDERS,
    "embedding_provider": EMBEDDING_PROVIDERS,
    "validate": VALIDATIONS,
    "validate_invoke": VALIDATIONS,
}
_WEEK_MS: Final = 7 * 86_400_000
_YEAR_MINUTES: Final = 366 * 1_440
RANGES: Final[Mapping[str, tuple[int, int]]] = {
    "retry_max_attempts": (1, 100),
    "retry_base_ms": (0, 3_600_000),
    "retry_factor": (1, 100),
    "retry_max_delay_ms": (0, 3_600_000),
    "circuit_failure_threshold": (1, 10_000),
    "circuit_cooldown": (1, 86_400),
    "circuit_half_open_max": (1, 1_000),
    "token_ttl_minutes": (1, _YEAR_MINUTES),
    "auth_cache_ttl": (0, 1_440),
    "approval_wait_ms": (0, 3_600_000),
    "otlp_sample": (0, 1),
    "invocation_timeout_ms": (0, _WEEK_MS),
    "idle_timeout_ms": (0, _WEEK_MS),
    "audit_retention_days": (0, 36_500),
}
"""The least and the most that a setting may be; other numbers are 0 or more."""
RATES: Final = ("limit_agent", "limit_server", "limit_tool")
"""Settings that are a rate: ``CALLS/SECONDS``, or nothing for no limit."""
_URLS: Final = ("public_url", "llm_base_url")
_MOST: Final = 2**63
_MOST_CALLS: Final = 10**9
_LONGEST: Final = 366 * 86_400
_SENT_TO_CLIENTS: Final = ("name", "version", "separator")
_FLAGS: Final = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


class Rate(NamedTuple):
    """At most so many calls in so many seconds."""

    calls: int
    seconds: float


class Merged(NamedTuple):
    """The settings of all places together."""

    settings: Settings
    sources: dict[str, str]
    """Where each setting comes from that does not have its default."""
    problems: list[Problem]


class _Given(NamedTuple):
    place: str
    value: Any


def merge_settings(
    file: Mapping[str, Any],
    environ: Mapping[str, str],
    options: Mapping[str, Any],
    dotenv: Mapping[str, str] | None = None,
) -> Merged:
    """Merge the settings of the file, ``.env``, the environment and the command line."""
    problems: list[Problem] = []
    chosen: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name in Settings._fields:
        default = getattr(DEFAULTS, name)
        for given in _layers(name, file, environ, options, dotenv or {}):
            if len(given) > 1 and given[0].value != given[1].value:
                problems.append(_conflict(*given))
            for place, value in given:
                try:
                    chosen[name] = _check(name, value, default)
                    sources[name] = place
                except ValueError as error:
                    problems.append(Problem(ProblemCode.INVALID_SCHEMA, place, str(error)))
    settings = DEFAULTS._replace(**chosen)
    if settings.llm_provider != OFF and not settings.llm_model:
        words = "needs llm_model, too: the name of the model to ask"
        place = sources["llm_provider"]
        problems.append(Problem(ProblemCode.INVALID_SCHEMA, place, words))
    return Merged(settings, sources, problems)


def parse_rate(text: str) -> Rate | None:
    """Read ``CALLS/SECONDS``; an empty text is no limit. Raises ValueError."""
    if not text:
        return None
    calls, _, seconds = text.partition("/")
    try:
        rate = Rate(int(calls), float(seconds))
        if not (1 <= rate.calls <= _MOST_CALLS and 1 <= rate.seconds <= _LONGEST):
            raise ValueError
    except ValueError:
        raise ValueError(
            "must be CALLS/SECONDS like 100/60 (1 to 1,000,000,000 calls in 1 to 31,622,400"
            " seconds), or empty for no limit"
        ) from None
    return rate


def _layers(
    name: str,
    file: Mapping[str, Any],
    environ: Mapping[str, str],
    options: Mapping[str, Any],
    dotenv: Mapping[str, str],
) -> list[list[_Given]]:
    """Return where a setting is given and its value there, the weakest layer first.

    A layer has two values when a setting is given by its name and by its former name.
    """
    default, variable = getattr(DEFAULTS, name), variable_of(name)
    former = FORMER_NAMES.get(name)
    keys = [name] if former is None else [former, name]
    variables = [variable] if former is None else [f"JUNCTION_{former.upper()}", variable]
    layers = [[_Given(f"$.junction.{key}", file[key]) for key in keys if key in file]]
    layers += [
        [_Given(f"{where} {key}", _parse(some[key], default)) for key in variables if key in some]
        for where, some in ((".env", dotenv), ("environment", environ))
    ]
    if options.get(name) is not None:
        layers.append([_Given(f"--{name.replace('_', '-')}", options[name])])
    return layers


def _conflict(former: _Given, newer: _Given) -> Problem:
    words = f"is the former name of {newer.place}, which is given another value; remove one of them"
    return Problem(ProblemCode.INVALID_SCHEMA, former.place, words)


def _check(name: str, value: Any, default: Any) -> Any:
    """Return the value of a setting. Raises ValueError that says what it must be."""
    if isinstance(default, tuple):
        return _check_networks(value)
    kind = str if default is None else type(default)
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind or not _is_in_range(name, value):
        raise ValueError(f"must be {_describe(name, kind)}")
    if name in CHOICES and value not in CHOICES[name]:
        raise ValueError(f"must be one of {', '.join(CHOICES[name])}")
    if name in RATES:
        parse_rate(value)
    if name in _URLS and value:
        return _check_url(value)
    if name in _SENT_TO_CLIENTS and not is_writable(value):
        raise ValueError("must be text in UTF-8")
    if name == "separator" and not value:
        raise ValueError(
            "must be one character or more, such as ':' or '__'; without it clients get theirs"
        )
    return value


def _is_in_range(name: str, value: Any) -> bool:
    if not isinstance(value, int | float):
        return True
    least, most = RANGES.get(name, (0, _MOST))
    return least <= value <= most


def _describe(name: str, kind: type) -> str:
    """Describe what a setting must be."""
    if kind not in (int, float):
        return "true or false" if kind is bool else "a string"
    number = "a whole number" if kind is int else "a number"
    if name not in RANGES:
        return f"{number}, 0 or more"
    least, most = RANGES[name]
    return f"{number} from {least:,} to {most:,}"


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


def _check_url(value: str) -> str:
    """Return an address, of ours or of an LLM, without a slash at its end."""
    # Imported late: few have one.
    from mcp_junction.config.urls import parse_url

    try:
        parse_url(value)
    except ValueError as error:
        raise ValueError(f"cannot be used: {error}") from None
    if "?" in value or "#" in value:
        raise ValueError("must have no query and no fragment, like https://junction.example.com")
    return value.rstrip("/")


def _parse(text: str, default: Any) -> Any:
    """Read the text of a variable as its setting's type, or leave it as it is."""
    if isinstance(default, bool):
        return _FLAGS.get(text.lower(), text)
    if isinstance(default, int):
        return int(text) if text.isdecimal() else text
    if isinstance(default, float):
        try:
            return float(text)
        except ValueError:
            return text
    return text
