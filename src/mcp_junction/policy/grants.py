"""Grant: what one agent may call, get or read on one server, or on all; and what makes one valid.

Grants are additive: any one of them allows. A name pattern matches the names that servers use
themselves, or literal URIs. Capability binding says which grants the declared tools of an agent
lead to. How the grants of an agent are asked is ``grant_set.py``; what a high-risk call needs
beside one is ``tokens.py``; nothing here reads or writes the store.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from mcp_junction.errors import ConditionError, Problem, ProblemCode
from mcp_junction.policy.cel_syntax import parse_condition
from mcp_junction.policy.patterns import MAX_PATTERN
from mcp_junction.policy.principal import LOCAL_OWNER, MAX_AGENT_ID, Principal, Role
from mcp_junction.policy.tokens import DEFAULT_TTL, NONE, TokenMode

ANY: Final = "*"
"""The server id that stands for every server, and the pattern that matches every name."""
TOOLS: Final = "tools"
PROMPTS: Final = "prompts"
RESOURCES: Final = "resources"
KINDS: Final = (TOOLS, PROMPTS, RESOURCES)
"""What a grant can cover. A resource template is granted as a resource."""
INVOKE: Final = "invoke"
"""The only action there is."""
MAX_NOTE: Final = 1_000
MAX_TTL: Final = 366 * 86_400.0
"""Seconds that a token may be good for at most, and the longest window of a limit."""
MAX_CALLS: Final = 10**9
SHORTEST_WINDOW: Final = 1.0


class GrantSource(StrEnum):
    """How a grant came about."""

    GRANTED = "granted"
    BOUND = "bound"  # from the declared tools of an agent, and replaced when it is bound again
    MIGRATED = "migrated"  # for an agent that had a key before there were grants
    OWNER = "owner"  # the local owner's, which is not stored
    DOOR = "door"  # given by the config to access tokens that fulfil a condition; not stored


class CallLimit(msgspec.Struct, frozen=True, gc=False):
    """At most so many calls within so many seconds."""

    calls: int
    per: float


class Grant(msgspec.Struct, frozen=True, gc=False):
    """One grant."""

    id: str
    agent_id: str
    server_id: str
    """The server's own id, which a rename does not change, or ``*``."""
    tool_name: str
    """A pattern of names, or of URIs."""
    kinds: tuple[str, ...] = (TOOLS,)
    actions: tuple[str, ...] = (INVOKE,)
    when: str = ""
    """A condition on the call (``conditions.py``); empty is none."""
    limits: CallLimit | None = None
    token_mode: TokenMode = TokenMode.WINDOW
    token_ttl: float = DEFAULT_TTL
    expires_at: float | None = None
    granted_at: float = 0.0
    granted_by: str = ""
    note: str = ""
    source: GrantSource = GrantSource.GRANTED
    version: int = 1

    @property
    def key(self) -> GrantKey:
        """What tells it from other grants: given again, it is the same grant with a new token."""
        return GrantKey(self.agent_id, self.server_id, self.tool_name, self.kinds)

    def is_live(self, now: float) -> bool:
        """Whether it has not expired."""
        return self.expires_at is None or now < self.expires_at


class GrantKey(NamedTuple):
    """The identity of a grant."""

    agent_id: str
    server_id: str
    tool_name: str
    kinds: tuple[str, ...]


class GrantTarget(NamedTuple):
    """What a grant is for, as it was written on a command line or declared by an agent."""

    server_id: str
    tool_name: str
    kinds: tuple[str, ...]


OWNER_GRANT: Final = Grant(
    id="owner",
    agent_id=LOCAL_OWNER.id,
    server_id=ANY,
    tool_name=ANY,
    kinds=KINDS,
    token_mode=NONE,
    granted_by=LOCAL_OWNER.id,
    note="the local owner may call everything",
    source=GrantSource.OWNER,
)
"""The local owner's grant. It is listed with the others, and in force while there is a local owner
(``identity``)."""


def migrated_grant(grant_id: str, agent_id: str, now: float) -> Grant:
    """Make the grant of an agent that had a live key before there were grants."""
    return Grant(
        id=grant_id,
        agent_id=agent_id,
        server_id=ANY,
        tool_name=ANY,
        kinds=KINDS,
        token_mode=NONE,
        granted_at=now,
        granted_by=GrantSource.MIGRATED.value,
        note="this agent had a key before there were grants; revoke it and grant what it needs",
        source=GrantSource.MIGRATED,
    )


def regrant(existing: Grant, wanted: Grant) -> Grant:
    """Return an existing grant with the terms of a wanted one of the same key."""
    return msgspec.structs.replace(wanted, id=existing.id, version=existing.version + 1)


def order_kinds(kinds: Iterable[str]) -> tuple[str, ...]:
    """Return kinds in their one order, each once; unknown ones come last."""
    wanted = dict.fromkeys(kinds)
    return (*(kind for kind in KINDS if kind in wanted), *(k for k in wanted if k not in KINDS))


def parse_target(
    text: str, servers: Mapping[str, str], separator: str = "."
) -> GrantTarget | Problem:
    """Read ``server.pattern``, ``server.*`` or ``*``; ``servers`` leads from names and ids to ids.

    All of a server is all kinds of it; anything else is tools. Servers and tools may have the
    separator in their names: a text that fits two servers is refused.
    """
    if text == ANY:
        return GrantTarget(ANY, ANY, KINDS)
    found: list[GrantTarget] = []
    at = text.find(separator, 1)
    while at > 0:
        name, pattern = text[:at], text[at + len(separator) :]
        server_id = ANY if name == ANY else servers.get(name)
        if server_id is not None and pattern:
            kinds = KINDS if pattern == ANY else (TOOLS,)
            found.append(GrantTarget(server_id, pattern, kinds))
        at = text.find(separator, at + 1)
    if len(found) == 1:
        return found[0]
    how = f"write server{separator}tool, server{separator}* or *"
    if found:
        how = "use the server's id in place of its name"
    why = "fits several servers" if found else "names no known server"
    return _problem(text[:MAX_PATTERN], f"{why}; {how}")


# -- what makes a grant valid


def check_grant(grant: Grant, by: Principal, now: float) -> list[Problem]:
    """Find everything that is wrong with a grant that ``by`` wants to give."""
    is_owners = grant.source is GrantSource.OWNER
    wrong_agent = None if is_owners else check_agent_id(grant.agent_id)
    found = [] if wrong_agent is None else [wrong_agent]
    found += [_problem(*fault) for fault in _find_wrong_target(grant)]
    if grant.token_mode is NONE and by.role not in (Role.OWNER, Role.ADMIN):
        found.append(_problem("token_mode", "can be none only by an administrator; use window"))
    return found + [_problem(*fault) for fault in _find_wrong_terms(grant, now)]


def is_evasive_uri(uri: str) -> bool:
    """Whether a URI may lead elsewhere than it looks: ``..`` segments, or encoded ``/ . \\``.

    Encoded twice counts, too; so do bytes that only overlong encodings have, and control characters
    and spaces, which some parsers of URIs leave out.
    """
    return _DEVIOUS.search(uri) is not None


_DEVIOUS: Final = re.compile(
    r"%(?:25)*(?:2[eEfF]|5[cC]|[cC][01])|(?:\A|(?<=[/\\:?#&=]))\.\.(?![^/\\?#&;])|[\0- \x7f]"
)


def _problem(path: str, message: str) -> Problem:
    return Problem(ProblemCode.INVALID_SCHEMA, path, message)


def check_agent_id(agent_id: str) -> Problem | None:
    """Find what is wrong with the id of an agent."""
    if not 1 <= len(agent_id) <= MAX_AGENT_ID or not agent_id.isprintable():
        return _problem("agent_id", f"must be 1 to {MAX_AGENT_ID} printable characters")
    if agent_id == LOCAL_OWNER.id:
        return _problem("agent_id", "must not be the local owner's, who may call everything")
    return None


def _find_wrong_target(grant: Grant) -> Iterator[tuple[str, str]]:
    """Find what is wrong with what a grant is for: the field, and what to write there."""
    name = grant.tool_name
    if not grant.server_id:
        yield "server_id", "must be a server's id or name, or *"
    if not grant.kinds or not set(grant.kinds) <= set(KINDS):
        yield "kinds", f"must be one or more of {', '.join(KINDS)}"
    elif grant.kinds != order_kinds(grant.kinds):
        yield "kinds", "must be in order, each once"
    if grant.actions != (INVOKE,):
        yield "actions", f'must be ["{INVOKE}"], the only action there is'
    if not 1 <= len(name) <= MAX_PATTERN:
        yield "tool_name", f"must be 1 to {MAX_PATTERN} characters; use * for the rest"
    elif RESOURCES in grant.kinds and is_evasive_uri(name):
        yield (
            "tool_name",
            "must not have .. segments or encoded / . \\ where resources are granted;"
            " write the URI plainly",
        )


def _find_wrong_terms(grant: Grant, now: float) -> Iterator[tuple[str, str]]:
    """Find what is wrong with how long, how often and when a grant allows."""
    limits, ends = grant.limits, grant.expires_at
    if not 0 < grant.token_ttl <= MAX_TTL:
        yield "token_ttl", f"must be more than 0 and at most {MAX_TTL:.0f} seconds"
    if limits is not None and not 1 <= limits.calls <= MAX_CALLS:
        yield "limits.calls", f"must be 1 to {MAX_CALLS}; revoke a grant to allow none"
    elif limits is not None and not SHORTEST_WINDOW <= limits.per <= MAX_TTL:
        yield "limits.per", f"must be {SHORTEST_WINDOW:g} to {MAX_TTL:.0f} seconds"
    if ends is not None and not now < ends < math.inf:
        yield "expires_at", "must be in the future; leave it out for no end"
    if len(grant.note) > MAX_NOTE:
        yield "note", f"is longer than {MAX_NOTE} characters"
    try:
        if grant.when:
            parse_condition(grant.when)
    except ConditionError as error:
        yield "when", str(error)


# -- capability binding

_BOUND: Final = GrantSource.BOUND
SEPARATOR: Final = ":"
"""What stands between server and tool in a declared tool."""


class Binding(msgspec.Struct, frozen=True):
    """What to do to an agent's grants so that it has what it declares."""

    added: tuple[Grant, ...] = ()
    kept: tuple[Grant, ...] = ()
    """Bound before and declared again. They get a new token, as any grant that is given again."""
    removed: tuple[Grant, ...] = ()
    covered: tuple[Grant, ...] = ()
    """Given otherwise than by binding, for just what is declared: they stay as they are, unless
    they have expired."""
    problems: tuple[Problem, ...] = ()
    """What is wrong with the declaration; nothing is to be done then."""


def bind(
    agent_id: str,
    declared: Iterable[str],
    existing: Iterable[Grant],
    servers: Mapping[str, str],
    *,
    by: Principal,
    now: float,
    new_id: Callable[[], str],
    token_ttl: float = DEFAULT_TTL,
) -> Binding:
    """Work out the grants of an agent that declares tools, each as ``server:tool``.

    ``servers`` leads from the names and ids of servers to their ids. To bind again replaces what
    was bound before, and leaves every other grant alone. The store does it, in one transaction.
    """
    wanted: dict[GrantKey, Grant] = {}
    problems: list[Problem] = []
    for index, text in enumerate(dict.fromkeys(declared)):
        path = f"declared_tools[{index}]"
        target = parse_target(text, servers, SEPARATOR)
        if isinstance(target, Problem):
            problems.append(target._replace(path=path))
            continue
        grant = Grant(
            "",
            agent_id,
            *target,
            token_ttl=token_ttl,
            granted_at=now,
            granted_by=by.id,
            source=GrantSource.BOUND,
        )
        problems += [p._replace(path=f"{path} {p.path}") for p in check_grant(grant, by, now)]
        wanted[grant.key] = grant
    if problems:
        return Binding(problems=tuple(problems))
    own = [g for g in existing if g.agent_id == agent_id]
    return _compare(wanted, [g for g in own if g.source is _BOUND or g.is_live(now)], new_id)


def _compare(
    wanted: Mapping[GrantKey, Grant], existing: Iterable[Grant], new_id: Callable[[], str]
) -> Binding:
    by_key = {grant.key: grant for grant in existing}
    found = [by_key[key] for key in wanted if key in by_key]
    return Binding(
        added=tuple(
            msgspec.structs.replace(grant, id=new_id())
            for key, grant in wanted.items()
            if key not in by_key
        ),
        kept=tuple(grant for grant in found if grant.source is _BOUND),
        removed=tuple(
            grant for key, grant in by_key.items() if grant.source is _BOUND and key not in wanted
        ),
        covered=tuple(grant for grant in found if grant.source is not _BOUND),
    )
