"""Capability binding: the grants that an agent's declared tools lead to when it is registered.

To bind again replaces what was bound before, and leaves every other grant alone. This says which
grants to add, change and remove; the store does it, in one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from mcp_junction.errors import Problem
from mcp_junction.policy.grants import (
    Grant,
    GrantKey,
    GrantSource,
    check_grant,
    parse_target,
)
from mcp_junction.policy.principal import Principal
from mcp_junction.policy.tokens import DEFAULT_TTL

SEPARATOR = ":"
"""What stands between server and tool in a declared tool."""


class Binding(msgspec.Struct, frozen=True):
    """What to do to an agent's grants so that it has what it declares."""

    added: tuple[Grant, ...] = ()
    kept: tuple[Grant, ...] = ()
    """Bound before and declared again. They get a new token, as any grant that is given again."""
    removed: tuple[Grant, ...] = ()
    covered: tuple[Grant, ...] = ()
    """Given otherwise than by binding, for just what is declared: they stay as they are."""
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

    ``servers`` leads from the names and ids of servers to their ids.
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
    return _compare(wanted, [g for g in existing if g.agent_id == agent_id], new_id)


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
        kept=tuple(grant for grant in found if grant.source is GrantSource.BOUND),
        removed=tuple(
            grant
            for key, grant in by_key.items()
            if grant.source is GrantSource.BOUND and key not in wanted
        ),
        covered=tuple(grant for grant in found if grant.source is not GrantSource.BOUND),
    )
