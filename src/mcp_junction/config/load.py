"""Loads a config file: reads, parses, checks and expands it, before anything is started.

All problems come in one report. Besides ``variables.read_dotenv`` nothing else here reads files.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from mcp_junction.config import client_dialects as client_keys
from mcp_junction.config.document import child_path, members, parse
from mcp_junction.config.door import DoorConfig, read_door
from mcp_junction.config.merge import merge_settings
from mcp_junction.config.servers import EntryReader, Options, ServerDefinition
from mcp_junction.config.settings import EXPOSURES, NAMINGS, Settings
from mcp_junction.config.variables import read_dotenv
from mcp_junction.errors import ConfigError, Problem, ProblemCode, invalid_at

log = logging.getLogger("mcp_junction.config")

_EXTRAS = "$.junction.servers"
_SET_OPTIONS = {"names": NAMINGS, "exposure": EXPOSURES}
_WORD = re.compile(r"[^\s='\";]+")
_OURSELVES = re.compile(r"mcp[-_]junction(\.exe|[@=<>~].*)?")
_LAUNCHER = re.compile(
    rf"{_OURSELVES.pattern}|(python[\d.]*|uvx?|pipx|env|(ba|da|z)?sh|nice|nohup|setsid|timeout)(\.exe)?"
)
_REMOTE_LAUNCHERS = frozenset(
    {"ssh", "docker", "podman", "nerdctl", "kubectl", "flatpak", "wsl", "chroot"}
)
"""Programs that run a command elsewhere, where a path means another file."""
_SET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")


class EndpointSet(NamedTuple):
    """A named set of servers and tools: patterns, how names are written and what is listed."""

    entries: tuple[str, ...]
    names: str | None = None
    exposure: str | None = None
    favourites: tuple[str, ...] = ()
    result_tokens: int | None = None


class ExposureRule(NamedTuple):
    """What one agent, or one kind of client, is listed; None is as everywhere."""

    exposure: str | None = None
    favourites: tuple[str, ...] = ()


class Config(NamedTuple):
    """A config file with all settings, checked."""

    source: str
    servers: tuple[ServerDefinition, ...]
    settings: Settings
    identity: str
    """A hash of the file's real path, by which a cycle of aggregators is detected."""
    endpoints: Mapping[str, EndpointSet]
    """Named sets of servers and tools, each at an address of its own."""
    disabled: frozenset[str] = frozenset()
    """Keys of disabled servers. A named set may list them; it shows nothing of them."""
    sources: Mapping[str, str] = MappingProxyType({})
    """Where each setting comes from that does not have its default."""
    agents: Mapping[str, ExposureRule] = MappingProxyType({})
    """What agents are listed, by their ids."""
    clients: Mapping[str, ExposureRule] = MappingProxyType({})
    """What clients are listed, by how their names begin, in lower case."""
    door: DoorConfig | None = None
    """Whose access tokens the service accepts, if it accepts any."""

    def once(self) -> Config:
        """The same config for a command that runs once: servers that fail are not restarted."""
        servers = tuple(server._replace(restart=False) for server in self.servers)
        return self._replace(servers=servers)


def without_file(
    environ: Mapping[str, str],
    options: Mapping[str, Any],
    entries: Mapping[str, Any] | None = None,
    dotenv: Mapping[str, str] | None = None,
) -> Config:
    """Make the config of a service without a file; ``entries`` as in one. Raises ConfigError."""
    settings, sources, problems = merge_settings({}, environ, options, dotenv)
    document = {"mcpServers": dict(entries or {})}
    servers, _ = _servers(document, None, environ, settings, problems, lenient=False, path="")
    if problems:
        raise ConfigError("the settings", problems)
    return Config("", tuple(servers), settings, "", {}, sources=sources)


def load(
    path: str, environ: Mapping[str, str], options: Mapping[str, Any], *, lenient: bool = False
) -> Config:
    """Load the config at ``path``. Raises ConfigError with every problem found.

    ``lenient``: a server whose variables are not set is kept, with its fault; the others can run.
    Warns in the log of keys that have a meaning to other clients and none here.
    """
    document, repeated = parse(_read(path), path)
    dotenv = read_dotenv(os.path.join(os.path.dirname(path), ".env"))
    variables = {**dotenv, **environ}
    if not isinstance(document, dict):
        wrong = invalid_at("$", "must be an object with a member mcpServers")
        raise ConfigError(path, [*repeated, wrong])
    own = document.get("junction") or {}
    problems = repeated
    if not isinstance(own, dict):
        problems.append(invalid_at("$.junction", "must be an object"))
        own = {}
    settings, sources, found = merge_settings(own, environ, options, dotenv)
    problems += found
    servers, disabled = _servers(
        document, own.get("servers"), variables, settings, problems, lenient=lenient, path=path
    )
    endpoints = _endpoints(own.get("endpoints"), servers, problems)
    agents = _exposure_rules(own.get("agents"), "$.junction.agents", problems)
    clients = _exposure_rules(own.get("clients"), "$.junction.clients", problems)
    door, found = read_door(own.get("door"))
    problems += found
    if problems:
        # A repeated entry has its problems twice.
        raise ConfigError(path, list(dict.fromkeys(problems)))
    checked = tuple(_mark_circular(server, path) for server in servers)
    by_name = {name.lower(): rule for name, rule in clients.items()}
    return Config(
        path,
        checked,
        settings,
        _identity(path),
        endpoints,
        disabled,
        sources,
        agents,
        by_name,
        door,
    )


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read().decode("utf-8")
    except FileNotFoundError:
        message = "there is no such file; check the path given with --config"
    except IsADirectoryError:
        message = "is a directory; give the path of the JSON file in it"
    except PermissionError:
        message = "may not be read by this user; check its permissions"
    except UnicodeDecodeError as error:
        message = f"is not UTF-8 text (byte {error.start})"
        raise ConfigError(path, [Problem(ProblemCode.INVALID_JSON, "$", message)]) from None
    except OSError as error:
        message = f"cannot be read: {error.strerror or error}"
    raise ConfigError(path, [Problem(ProblemCode.FILE_NOT_FOUND, path, message)]) from None


def _servers(
    document: dict[str, Any],
    extras: Any,
    variables: Mapping[str, str],
    settings: Settings,
    problems: list[Problem],
    *,
    lenient: bool,
    path: str,
) -> tuple[list[ServerDefinition], frozenset[str]]:
    """Read the servers, and the keys of those that are disabled; add what is wrong to problems."""
    folder = os.path.dirname(os.path.abspath(path)) if path else ""
    variables = {**client_keys.workspace_variables(folder), **variables}
    member = "mcpServers" if "mcpServers" in document or "servers" not in document else "servers"
    root = child_path("$", member)
    entries = document.get(member)
    if not isinstance(entries, dict):
        what = "must be" if member in document else "is missing:"
        words = f"{what} an object with one entry for each server"
        problems.append(invalid_at(root, words))
        return [], frozenset()
    servers: list[ServerDefinition] = []
    if not isinstance(extras, dict | None):
        problems.append(invalid_at(_EXTRAS, "must be an object with one entry for each server"))
    extras = extras if isinstance(extras, dict) else {}
    problems += [
        invalid_at(child_path(_EXTRAS, key), f"names no server of {member}")
        for key in extras
        if key not in entries
    ]
    for key, entry in members(entries):
        reader = EntryReader(key, child_path(root, key), variables, folder)
        extra = Options(extras.get(key, {}), child_path(_EXTRAS, key))
        definition = reader.read(entry, extra, settings, lenient=lenient)
        if definition is None or not lenient:
            problems += reader.problems
        if definition is not None:
            servers.append(definition)
            for words in client_keys.warnings_about(entry):
                log.warning("%s: server %r: %s", path, key, words)
    disabled = frozenset(entries).difference(server.key for server in servers)
    return servers, disabled


def _endpoints(
    value: Any, servers: list[ServerDefinition], problems: list[Problem]
) -> dict[str, EndpointSet]:
    root = "$.junction.endpoints"
    keys = {server.key for server in servers}
    sets: dict[str, EndpointSet] = {}
    for name, entries in _members(value, root, "a name and an array for each", problems):
        path = child_path(root, name)
        if name in keys:
            words = "has the name of a server, which has an address already"
            problems.append(invalid_at(path, words))
        if not _SET_NAME.match(name):
            problems.append(invalid_at(path, "a name is letters, digits, '-', '_' and '.'"))
        chosen: dict[str, Any] = {}
        if isinstance(entries, dict):
            chosen = _list_options(entries, path, _SET_OPTIONS, problems)
            chosen["result_tokens"] = tokens = entries.get("result_tokens")
            if tokens is not None and (type(tokens) is not int or tokens < 0):
                place = child_path(path, "result_tokens")
                problems.append(invalid_at(place, "must be a whole number, 0 or more"))
            entries = entries.get("servers")
        if not _is_texts(entries):
            words = 'must be an array like ["git", "files.read_*"], or an object with it as servers'
            problems.append(invalid_at(path, words))
            continue
        sets[name] = EndpointSet(tuple(entries), **chosen)
    return sets


def _exposure_rules(value: Any, root: str, problems: list[Problem]) -> dict[str, ExposureRule]:
    """Read what agents, or clients, are listed."""
    rules: dict[str, ExposureRule] = {}
    for name, options in _members(value or None, root, "a name and an object for each", problems):
        path = child_path(root, name)
        if isinstance(options, dict):
            chosen = _list_options(options, path, {"exposure": EXPOSURES}, problems)
            rules[name] = ExposureRule(**chosen)
        else:
            problems.append(invalid_at(path, "must be an object with exposure or favourites"))
    return rules


def _members(
    value: Any, path: str, what: str, problems: list[Problem]
) -> Iterable[tuple[str, Any]]:
    """Return the members of an object that need not be there."""
    if isinstance(value, dict):
        return value.items()
    if value is not None:
        problems.append(invalid_at(path, f"must be an object: {what}"))
    return ()


def _list_options(
    given: dict[str, Any],
    path: str,
    choices: Mapping[str, Sequence[str]],
    problems: list[Problem],
) -> dict[str, Any]:
    """Read what is listed to somebody: words to choose from, and favourites."""
    chosen: dict[str, Any] = {member: given.get(member) for member in choices}
    problems += [
        invalid_at(child_path(path, member), f"must be one of {', '.join(choices[member])}")
        for member, value in chosen.items()
        if value is not None and value not in choices[member]
    ]
    favourites = given.get("favourites") or []
    if not _is_texts(favourites):
        words = 'must be an array of tools like ["github.create_issue", "files.read_*"]'
        problems.append(invalid_at(child_path(path, "favourites"), words))
        favourites = []
    return {**chosen, "favourites": tuple(favourites)}


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) and one for one in value)


def _mark_circular(server: ServerDefinition, path: str) -> ServerDefinition:
    """Give a server a fault if it plainly starts Junction with this same file.

    A started Junction also sees a cycle in its environment, but that may have been cleared.
    """
    words = [server.command, *(word for arg in server.args for word in _WORD.findall(arg))]
    programs = [os.path.basename(word) for word in words]
    if (
        not _LAUNCHER.fullmatch(programs[0])
        or not any(map(_OURSELVES.fullmatch, programs))
        or not _REMOTE_LAUNCHERS.isdisjoint(programs)
    ):
        return server
    own, folder = os.path.realpath(path), server.cwd or ""
    files = [*_after_config(words), *_after_config(server.args)]  # whose names may have spaces
    files += [arg.partition("=")[2] for arg in server.args if arg.startswith("--config=")]
    if all(os.path.realpath(os.path.join(folder, file)) != own for file in files):
        return server
    return server._replace(
        fault="circular reference: it would serve the file that it stands in;"
        " remove the entry that starts mcp-junction with this file"
    )


def _after_config(words: Sequence[str]) -> list[str]:
    return [word for before, word in itertools.pairwise(words) if before == "--config"]


def _identity(path: str) -> str:
    return hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:16]
