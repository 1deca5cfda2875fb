"""Endpoint: which servers and tools one address shows. Everything, one server, or a named set.

A pattern is ``server`` or ``server.tool``, either part with ``*``; it is matched against pairs,
never against a spelled name.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Sequence
from fnmatch import translate
from functools import lru_cache

import msgspec

from mcp_junction.config.load import Config, ExposureRule
from mcp_junction.config.settings import Settings
from mcp_junction.errors import ConfigError, Problem, invalid_at
from mcp_junction.protocol.names import STRICT, Pair, Spelling

log = logging.getLogger("mcp_junction.catalog")


class Pattern(msgspec.Struct, frozen=True):
    """One entry of a named set."""

    server: str
    name: str = "*"

    def admits(self, pair: Pair) -> bool:
        return self.admits_server(pair.server) and _glob(self.name, pair.name)

    def admits_server(self, server: str) -> bool:
        return _glob(self.server, server)


class Endpoint(msgspec.Struct, frozen=True, cache_hash=True):
    """What one address shows."""

    name: str
    patterns: tuple[Pattern, ...] | None = None
    prefixed: bool = True
    names: str | None = None
    """How names are written for clients nothing is known about; None is as everywhere."""
    exposure: str | None = None
    """Whether all tools are listed, or those to search them with; None is as everywhere."""
    favourites: tuple[str, ...] = ()
    """Patterns of tools that are listed beside those to search with."""
    result_tokens: int | None = None
    """Above how many tokens a result is given as its beginning; 0 is never, None as everywhere."""

    def admits(self, pair: Pair) -> bool:
        return self.patterns is None or any(p.admits(pair) for p in self.patterns)

    def admits_server(self, server: str) -> bool:
        return self.patterns is None or any(p.admits_server(server) for p in self.patterns)

    def admits_all(self, server: str) -> bool:
        """Whether a server is shown whole, whatever it offers."""
        if self.patterns is None:
            return True
        return any(p.name == "*" and p.admits_server(server) for p in self.patterns)


EVERYTHING = Endpoint("mcp")


@lru_cache(4096)
def one_server(key: str) -> Endpoint:
    """A server by itself, under its own names."""
    return Endpoint(f"mcp/{key}", (Pattern(_literal(key)),), prefixed=False)


def spelling_at(endpoint: Endpoint, settings: Settings, separator: str, servers: int) -> Spelling:
    """How names are written at an endpoint for a client nothing is known about."""
    mode = settings.prefix
    alone = mode == "auto" and servers == 1
    prefixed = endpoint.prefixed and mode != "never" and not alone
    if settings.separator is None and (endpoint.names or settings.names) == "strict":
        return msgspec.structs.replace(STRICT, prefixed=prefixed)
    return Spelling(separator, prefixed=prefixed)


def shown_to(endpoint: Endpoint, config: Config, client: str, agent: str) -> Endpoint:
    """Return an endpoint with what it lists to a client of this name and an agent of this id.

    The agent's own rule comes first, then the endpoint's, then the client's; the favourites of all
    of them are listed.
    """
    if not config.agents and not config.clients:
        return endpoint
    of_agent = config.agents.get(agent, ExposureRule())
    begins = [prefix for prefix in config.clients if client.lower().startswith(prefix)]
    of_client = config.clients[max(begins, key=len)] if begins else ExposureRule()
    favourites = dict.fromkeys((*endpoint.favourites, *of_agent.favourites, *of_client.favourites))
    return msgspec.structs.replace(
        endpoint,
        exposure=of_agent.exposure or endpoint.exposure or of_client.exposure,
        favourites=tuple(favourites),
    )


@lru_cache(256)
def favourites_of(patterns: tuple[str, ...]) -> re.Pattern[str] | None:
    """Compile patterns of tools, to be matched with ``server.tool``; None if there are none.

    A pattern without a tool stands for all tools of its server.
    """
    if not patterns:
        return None
    either = (text for one in patterns for text in (one, f"{one}.*"))
    return re.compile("|".join(map(translate, either)))


def named_set(
    name: str,
    entries: Sequence[str],
    servers: Collection[str],
    names: str | None = None,
    exposure: str | None = None,
    favourites: tuple[str, ...] = (),
    result_tokens: int | None = None,
) -> Endpoint:
    """A set of the config file. Raises ValueError for an entry that names no server.

    ``servers`` are all the file names; those that are not there show nothing.
    """
    return Endpoint(
        f"mcp/{name}",
        tuple(_pattern(entry, servers) for entry in entries),
        names=names,
        exposure=exposure,
        favourites=favourites,
        result_tokens=result_tokens,
    )


def named_sets(config: Config) -> dict[str, Endpoint]:
    """Every set of a config file, by name. Raises ConfigError for one that makes no sense."""
    servers = {definition.key for definition in config.servers}
    found: dict[str, Endpoint] = {}
    problems: list[Problem] = []
    for name, asked in config.endpoints.items():
        entries = asked.entries
        place = f"$.junction.endpoints.{name}"
        try:
            known = {*servers, *config.disabled}
            chosen = found[name] = named_set(name, entries, known, *asked[1:])
        except ValueError as error:
            problems.append(invalid_at(place, str(error)))
            continue
        for entry, pattern in zip(entries, chosen.patterns or (), strict=True):
            if not any(pattern.admits_server(key) for key in servers):
                log.warning("%s: %r names a disabled server only", place, entry)
    if problems:
        raise ConfigError(config.source, problems)
    return found


def _pattern(entry: str, servers: Collection[str]) -> Pattern:
    """The longest server key that begins the entry wins, since keys may hold dots too.

    Raises ValueError where no server is named.
    """
    if entry in servers:
        return Pattern(_literal(entry))
    for key in sorted(servers, key=len, reverse=True):
        if entry.startswith(f"{key}."):
            return Pattern(_literal(key), entry[len(key) + 1 :])
    server, _, name = entry.partition(".")
    if not any(_glob(server, key) for key in servers):
        raise ValueError(f"{entry!r} names no server")
    return Pattern(server, name or "*")


def _literal(text: str) -> str:
    return re.sub(r"([*?\[])", r"[\1]", text)


@lru_cache(4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern))


def _glob(pattern: str, text: str) -> bool:
    return pattern in ("*", text) or _compiled(pattern).match(text) is not None
