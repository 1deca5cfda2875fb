"""``mcp-junction keys``: manages the bearer keys of HTTP clients, and revokes access tokens."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any, Final

from mcp_junction.audit.log import AuditLog
from mcp_junction.cli.options import (
    action,
    add_actions,
    add_json,
    add_store_options,
    make_parser,
    option,
    read_service_settings,
)
from mcp_junction.cli.printing import print_table, printable
from mcp_junction.cli.runner import run_async
from mcp_junction.cli.storage import open_storage
from mcp_junction.errors import InvalidChange, Problem, UsageError
from mcp_junction.governance.policy_admin import PolicyAdministration, migrate_agents, token_ttl_of
from mcp_junction.identity.keys import KeyRing, sign_existing_keys
from mcp_junction.policy.grants import ANY, Grant, GrantTarget, check_agent_id, parse_target
from mcp_junction.policy.patterns import compile_pattern
from mcp_junction.policy.principal import (
    KEY_ROLES,
    LOCAL_OWNER,
    Right,
    Role,
    explain_refusal,
    has_right,
)
from mcp_junction.store.grants import AgentRecord
from mcp_junction.store.keys import RevokedSubject
from mcp_junction.store.records import KeyRecord
from mcp_junction.store.store import Store
from mcp_junction.telemetry.bus import Bus

_ROLES = [role.value for role in KEY_ROLES]
_MAY = {
    Role.ADMIN: "may do everything",
    Role.ORCHESTRATOR: "reads everything, grants, and calls for agents that it names",
    Role.AGENT: "calls what it is granted",
    Role.VIEWER: "reads, and calls nothing",
}
_CLOSED = (
    "This is the first key for anybody but an administrator. From now on every request to /mcp"
    " needs a key, yours on this machine too, and revoking this one does not change that."
    " `mcp-junction serve --owner-without-key` lets you in without one again."
)


def run(argv: list[str]) -> int:
    parser = make_parser(
        "mcp-junction keys",
        "Make, show and revoke the keys that clients of `mcp-junction serve` present.",
        "example:\n  mcp-junction keys create --role agent --agent build-bot\n",
    )
    add_actions(parser, _ACTIONS, add_store_options, add_json)
    args = parser.parse_args(argv)
    if args.action_name == "create" and args.role is None:
        args.role = _ask_role()
    return run_async(_act(args))


def _ask_role() -> str:
    """Ask at the terminal for the role of a new key. Raises UsageError without a terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"--role is needed: one of {', '.join(_ROLES)}")
    for role, words in _MAY.items():
        print(f"  {role:<13} {words}", file=sys.stderr)
    while True:
        print("Which role? ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if line.strip() in _ROLES:
            return line.strip()
        if not line:
            raise UsageError(f"no role was chosen: one of {', '.join(_ROLES)}")


async def _act(args: argparse.Namespace) -> int:
    if not has_right(LOCAL_OWNER, Right.CHANGE_KEYS):
        raise UsageError(explain_refusal(LOCAL_OWNER, Right.CHANGE_KEYS))
    async with open_storage(args) as storage:
        store = storage.store
        if args.action_name == "list" and not await store.keys.unsigned():
            return await _list(args, store)
        async with storage.audit_log() as log:
            await sign_existing_keys(store, log, storage.folder)
            await migrate_agents(store, log, storage.folder)  # before there is another key
            return int(await args.act(args, store, log))


async def _make_agent(args: argparse.Namespace, store: Store, log: AuditLog) -> None:
    """Make the record of a key's agent, and the grants that were asked for.

    Raises UsageError for a pattern that makes no sense: then there is nothing of it.
    """
    agent_id, now = args.agent or args.role, time.time()
    wrong = check_agent_id(agent_id)
    if wrong is not None:
        raise UsageError(f"--agent {wrong.message}")
    servers = {name: one.id for one in await store.servers.all() for name in (one.id, one.name)}
    targets = []
    for text in args.grant:
        target = parse_target(text, servers)
        if isinstance(target, Problem):
            raise UsageError(f"--grant {target.path}: {target.message}")
        targets.append(target)
    me = LOCAL_OWNER
    await store.policy.add_agent(AgentRecord(agent_id, created_at=now, created_by=me.id), now)
    if not targets:
        return
    async with Bus(store.events, log.writer) as bus:
        ttl = token_ttl_of(read_service_settings(args))
        policies = PolicyAdministration(store, None, log, bus, ttl, lambda: servers)
        for server_id, pattern, kinds in targets:
            grant = Grant("", agent_id, server_id, pattern, kinds, token_ttl=ttl)
            try:
                await policies.grant(grant, me)
            except InvalidChange as error:
                raise UsageError(f"--grant {pattern}: {error}") from None
    await _warn_of_unknown(store, dict(zip(args.grant, targets, strict=True)))


async def _warn_of_unknown(store: Store, given: dict[str, GrantTarget]) -> None:
    """Print a warning for each pattern that no stored or declared tool fits."""
    known = [(one.server_id, one.name) for one in await store.tools.all()]
    known += [(one.server_id, one.tool_name) for one in await store.declared_tools.all()]
    for text, target in given.items():
        pattern = compile_pattern(target.tool_name)
        fits = (target.server_id in (ANY, at) and pattern.matches(name) for at, name in known)
        if target.tool_name != ANY and not any(fits):
            words = "fits no known tool; the grant holds for one that comes later"
            print(f"warning: --grant {printable(text)} {words}", file=sys.stderr)


async def _create(args: argparse.Namespace, store: Store, log: AuditLog) -> int:
    ring = await KeyRing.open(store)
    agent = args.agent or args.role
    if args.grant and args.role != Role.AGENT:
        raise UsageError("--grant is for keys of the role agent")
    me = LOCAL_OWNER
    is_first = args.role != Role.ADMIN and not ring.has_issued_client_keys
    async with log.act(me.id, me.role, "key.create", target=agent, detail={"role": args.role}):
        if args.role == Role.AGENT:
            await _make_agent(args, store, log)
        key, text = await ring.create(Role(args.role), agent, me.id)
    if is_first:
        print(_CLOSED, file=sys.stderr)
    if args.json:
        print(json.dumps({**_to_dict(key), "key": text}))
        return 0
    print(text)
    print(f"Key {key.id} for {key.agent} ({key.role}). It is not shown again.", file=sys.stderr)
    if key.role == Role.AGENT and not args.grant:
        words = "It may use what its agent was granted; see: mcp-junction grants --help"
        print(words, file=sys.stderr)
    return 0


async def _list(args: argparse.Namespace, store: Store, _: AuditLog | None = None) -> int:
    keys = await (await KeyRing.open(store)).all()
    rows = [
        (key.id, key.role, key.agent, _format_time(key.created_at), _format_state(key))
        for key in keys
    ]
    headings = ("id", "role", "agent", "created", "state")
    return print_table(args, list(map(_to_dict, keys)), headings, rows, "There are no keys yet.")


def _format_state(key: KeyRecord) -> Any:
    from rich.text import Text

    if key.revoked_at is None:
        return Text("in force", "green")
    return Text(f"revoked {_format_time(key.revoked_at)}", "red")


async def _revoke(args: argparse.Namespace, store: Store, log: AuditLog) -> int:
    ring, me = await KeyRing.open(store), LOCAL_OWNER
    async with log.act(me.id, me.role, "key.revoke", target=args.id):
        key = await ring.revoke(args.id, me.id)
    if args.json:
        print(json.dumps(_to_dict(key)))
    else:
        print(f"Key {key.id} of {key.agent} is revoked.", file=sys.stderr)
    return 0


async def _revoke_tokens(args: argparse.Namespace, store: Store, log: AuditLog) -> int:
    me, now = LOCAL_OWNER, time.time()
    detail = {"issuer": args.issuer}
    async with log.act(me.id, me.role, "tokens.revoke", target=args.subject, detail=detail):
        revoked = RevokedSubject(args.issuer, args.subject, now, me.id)
        await store.revoked_subjects.revoke(revoked)
    if args.json:
        shown = {"subject": args.subject, "issuer": args.issuer, "not_before": _format_time(now)}
        print(json.dumps(shown))
    else:
        print(f"Tokens of {args.subject} from before now are revoked.", file=sys.stderr)
    return 0


def _to_dict(key: KeyRecord) -> dict[str, str | None]:
    return {
        "id": key.id,
        "role": key.role,
        "agent": key.agent,
        "created_at": _format_time(key.created_at),
        "revoked_at": _format_time(key.revoked_at),
    }


def _format_time(at: float | None) -> str | None:
    return None if at is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


_ACTIONS: Final = {
    "create": action(
        _create,
        "make a key and print it, once",
        option(
            "--role",
            choices=_ROLES,
            help="the role of the key; without it you are asked at a terminal",
        ),
        option("--agent", metavar="ID", help="the agent that uses the key (default: the role)"),
        option(
            "--grant",
            metavar="PATTERN",
            action="append",
            default=[],
            help="what the agent may call: SERVER.TOOL, SERVER.* or *, where * and ? stand for any"
            " characters; again for more. Without one it may call nothing until something is"
            " granted",
        ),
        description="Make a key and print it, once. What a role may do:\n\n"
        + "\n".join(f"  {role:<13} {words}" for role, words in _MAY.items()),
        epilog="The first key that is not an administrator's closes /mcp to requests without a key."
        "\n\nexamples:\n  mcp-junction keys create --role agent --agent build-bot"
        " --grant 'github.list_*'\n  mcp-junction keys create --role viewer\n",
    ),
    "list": action(_list, "show all keys, without their secrets"),
    "revoke": action(
        _revoke, "revoke a key, at once", option("id", metavar="ID", help="as shown by list")
    ),
    "revoke-tokens": action(
        _revoke_tokens,
        "refuse the access tokens that were issued to somebody until now",
        option("subject", metavar="SUBJECT", help="the claim sub of the tokens"),
        option(
            "--issuer", metavar="URL", required=True, help="as in the config file of the service"
        ),
        description="Refuse all access tokens that the door's issuer has issued to a subject until"
        " now.\nTokens that are issued later are accepted: block the subject there, too.",
    ),
}
