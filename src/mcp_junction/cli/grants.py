"""``mcp-junction grants``: shows, gives, renews and revokes what agents may use."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, Final

from mcp_junction.cli.options import action, make_parser, option
from mcp_junction.cli.printing import do_each, print_json, print_table, print_warnings, printable
from mcp_junction.cli.remote import ServiceClient, path_to, run_action
from mcp_junction.cli.values import (
    format_moment,
    format_seconds,
    name_target,
    parse_duration,
    parse_limit,
    parse_moment,
    read_targets,
)
from mcp_junction.errors import UsageError
from mcp_junction.policy.patterns import compile_pattern

POLICIES: Final = "/api/v1/mcp/policies"
TOOLS: Final = "/api/v1/mcp/tools"
KINDS: Final = ("tools", "prompts", "resources")
TOKEN_MODES: Final = ("window", "present", "single_use", "approval", "none")
_SHORT: Final = 8
"""How much of an id is shown: enough to name a grant by."""
_COLOURS: Final = {"migrated": "yellow", "owner": "cyan"}
_HOW: Final = 'send it as "token" to /api/v1/mcp/invoke, or as _meta["junction/token"] in MCP'


def run(argv: list[str]) -> int:
    parser = make_parser(
        "mcp-junction grants",
        "Show, give, renew and revoke what agents of a running `mcp-junction serve` may use."
        "\nAn agent sees and may call nothing but what it was granted.",
        "examples:\n  mcp-junction grants list build-bot\n"
        "  mcp-junction grants add build-bot git.git_status 'files.read_*'\n"
        "  mcp-junction grants add build-bot 'git.*' --limit 100/1h --expires 7d\n"
        "  mcp-junction grants revoke 4f1c9e\n",
    )
    return run_action(parser, argv, _ACTIONS)


def _list(args: argparse.Namespace, remote: ServiceClient) -> int:
    found = list(remote.array(path_to(POLICIES, args.agent) if args.agent else POLICIES))
    headings = ("grant", "agent", "may use", "on these terms", "by")
    whose = f" of {args.agent}" if args.agent else ""
    empty = f"There are no grants{whose}; see: mcp-junction grants add --help"
    return print_table(args, found, headings, map(_row, found), empty)


def _row(one: dict[str, Any]) -> tuple[Any, ...]:
    from rich.text import Text

    source, kinds = one["source"], one["kinds"]
    what = name_target(one) if kinds == ["tools"] else f"{name_target(one)}\n{', '.join(kinds)}"
    terms = Text("\n".join(printable(line) for line in _describe_terms(one)))
    return (
        one["id"][:_SHORT],
        one["agent_id"],
        what,
        terms if one["is_live"] else Text.assemble(("EXPIRED\n", "red"), terms),
        one["granted_by"] if source == "granted" else Text(source, _COLOURS.get(source, "")),
    )


def _describe_terms(one: dict[str, Any]) -> Iterator[str]:
    """Describe what a grant asks for and how long it lasts, in lines."""
    if one["when"]:
        yield f"when {one['when']}"
    if one["limits"]:
        yield f"at most {one['limits']['calls']}/{format_seconds(one['limits']['per'])}"
    if one["expires_at"]:
        yield f"until {format_moment(one['expires_at'])}"
    mode, until = one["token_mode"], format_moment(one["token_expires_at"])
    if mode == "none":
        yield "high risk: no token needed"
    elif mode == "approval":
        yield "high risk: a person approves each call"
    elif mode == "window":
        yield f"high risk: until {until}" if until else "high risk: renew the token first"
    else:
        yield f"high risk: {mode} token" + (f", until {until}" if until else "; renew it first")
    if one["note"]:
        yield one["note"]


def _add(args: argparse.Namespace, remote: ServiceClient) -> int:
    terms = _read_terms(args)
    bodies: list[dict[str, Any]] = [
        {
            "agent_id": args.agent,
            "server_id": target.server_id,
            "tool_name": target.tool_name,
            "kinds": list(target.kinds),
            **terms,
        }
        for target in read_targets(remote, args.patterns)
    ]
    if args.dry_run:
        return _simulate(args, remote, bodies)
    made: list[dict[str, Any]] = []
    try:
        made.extend(remote.post(f"{POLICIES}/grant", body) for body in bodies)
    finally:  # when a later one is refused, these were given all the same
        _print_given(args, made, remote)
    return 0


def _simulate(args: argparse.Namespace, remote: ServiceClient, bodies: list[dict[str, Any]]) -> int:
    """Print what each of some grants would have changed."""
    found = [
        remote.post(f"{POLICIES}/simulate", {"grant": body, "last": args.last}) for body in bodies
    ]
    for one in found:
        print_warnings(one)
    if args.json:
        print_json(found)
        return 0
    for one in found:
        _print_simulation(args, one)
    return 0


def _print_simulation(args: argparse.Namespace, found: dict[str, Any]) -> None:
    """Print what a grant would have changed."""
    words = f"{found['newly_allowed']} more allowed, {found['newly_denied']} denied"
    depends = f", {found['depends']} by its condition" if found["depends"] else ""
    whose = printable(found["agent_id"])
    print(f"Of the last {found['calls']} calls of {whose}: {words}{depends}.")
    rows = (
        (one["calls"], name_target(one), one["before"], one["after"]) for one in found["changes"]
    )
    headings = ("calls", "what", "before", "after")
    print_table(args, found, headings, rows, "Nothing would have changed.")


def _print_given(
    args: argparse.Namespace, made: list[dict[str, Any]], remote: ServiceClient
) -> None:
    for one in made:
        print_warnings(one)
    if args.json and made:
        print_json(made)
        return
    has_tokens = any(one["token"] for one in made)
    tools = list(remote.array(TOOLS, enabled_only=False)) if has_tokens else []
    for one in made:
        what = printable(f"{one['agent_id']} may use {name_target(one)}")
        print(f"Grant {one['id'][:_SHORT]}: {what} ({', '.join(one['kinds'])})")
        why = _explain_token(one, tools)
        if why and one["token"]:
            print(f"  {printable(why)}")
            print(_describe_token(one), flush=True)


def _explain_token(grant: dict[str, Any], tools: list[dict[str, Any]]) -> str:
    """Say why a grant needs a token: for a tool that is high-risk, or may be; empty if for none."""
    if "tools" not in grant["kinds"]:
        return ""
    server, pattern = grant["server_id"], compile_pattern(grant["tool_name"])
    found = [
        tool
        for tool in tools
        if server in ("*", tool["server_id"]) and pattern.matches(tool["tool_name"])
    ]
    for tool in found:
        if tool["risk"] == "high":
            return f"{name_target(tool)} is high-risk: {tool['risk_reason']}."
    if found and pattern.is_exact and server != "*":
        return ""
    return "A tool that it fits may be high-risk; none that is known is."


def _read_terms(args: argparse.Namespace) -> dict[str, Any]:
    """Read the options of a grant into the members of the request."""
    terms = {
        "kinds": args.kinds and _read_kinds(args.kinds),
        "when": args.when,
        "token_mode": args.token_mode,
        "token_ttl": args.ttl and parse_duration(args.ttl, "--ttl"),
        "limits": args.limit and parse_limit(args.limit, "--limit"),
        "expires_at": args.expires and parse_moment(args.expires, "--expires"),
        "note": args.note,
    }
    return {name: value for name, value in terms.items() if value not in (None, "")}


def _read_kinds(text: str) -> list[str]:
    words = [word.strip() for word in text.split(",")]
    if not words or not set(words) <= set(KINDS):
        raise UsageError(f"--kinds must be of {', '.join(KINDS)}, separated by commas")
    return [kind for kind in KINDS if kind in words]


def _renew(args: argparse.Namespace, remote: ServiceClient) -> int:
    return do_each(
        args,
        _find_ids(args, remote),
        lambda one: remote.post(path_to(POLICIES, one, "token")),
        lambda one, grant: f"Grant {one[:_SHORT]} has a new token.\n{_describe_token(grant)}",
    )


def _revoke(args: argparse.Namespace, remote: ServiceClient) -> int:
    part = ["token"] if args.token_only else []
    what, verb = ("The tokens of grant", "are") if args.token_only else ("Grant", "is")

    def revoke(one: str) -> str:
        remote.delete(path_to(POLICIES, one, *part))
        return one

    return do_each(
        args,
        _find_ids(args, remote),
        revoke,
        lambda one, _: f"{what} {one[:_SHORT]} {verb} revoked.",
        "revoked",
    )


def _find_ids(args: argparse.Namespace, remote: ServiceClient) -> list[str]:
    """Find the grants that the beginnings of their ids name."""
    every = [one["id"] for one in remote.array(POLICIES)]
    found = []
    for text in args.ids:
        fits = [one for one in every if one.startswith(text)]
        if len(fits) != 1:
            why = "fits several grants" if fits else "is the id of no grant"
            raise UsageError(f"{text!r} {why}; see: mcp-junction grants list")
        found += fits
    return found


def _describe_token(one: dict[str, Any]) -> str:
    """Show the token of a grant, and say how it is used."""
    until = f"until {format_moment(one['token_expires_at'])} UTC"
    if one["token_mode"] == "window":
        words = f"High-risk tools pass {until}; calls need not carry it."
    else:
        words = f"A high-risk call carries it, {until}: {_HOW}."
    return (
        f"  token, shown this once: {one['token']}\n"
        f"  {words} Then: mcp-junction grants renew {one['id'][:_SHORT]}"
    )


_IDS: Final = option("ids", metavar="GRANT", nargs="+", help="its id, or the beginning of it")
_ACTIONS: Final = {
    "list": action(
        _list,
        "show the grants of one agent, or of all",
        option("agent", metavar="AGENT", nargs="?", help="only grants of this agent"),
    ),
    "add": action(
        _add,
        "grant an agent tools, prompts and resources",
        option("agent", metavar="AGENT", help="the agent's id; a new one is made"),
        option("patterns", metavar="PATTERN", nargs="+", help="server.tool, server.* or *"),
        option(
            "--kinds",
            metavar="LIST",
            help="tools, prompts, resources, separated by commas (default: tools; all for"
            " server.*)",
        ),
        option("--token-mode", choices=TOKEN_MODES, help="default: window"),
        option(
            "--when",
            metavar="CEL",
            help="a condition on each call, like 'args.path.startsWith(\"/srv/public/\")'",
        ),
        option("--ttl", metavar="TIME", help="how long a token is good for, like 15m"),
        option("--limit", metavar="CALLS/TIME", help="at most so many calls, like 100/1h"),
        option("--expires", metavar="WHEN", help="when the grant ends: 7d, or a date"),
        option("--note", metavar="TEXT", help="what the grant is for"),
        option(
            "--dry-run",
            action="store_true",
            help="give nothing: show what it would have changed for the agent's last calls",
        ),
        option(
            "--last", metavar="N", type=int, default=1_000, help="how many calls, with --dry-run"
        ),
        description="Grant an agent what the patterns name: server.tool, where * and ? stand for"
        "\nany characters; server.* for all of a server, its prompts and resources too; * for"
        "\neverything. The same pattern again is the same grant, with a new token.",
        epilog="High-risk tools (delete, write, create, update, modify … in their names, marked as"
        "\ndestructive, or set by you) also need a token of the grant:\n\n"
        "  window      one that has not expired exists; the call need not carry it (default)\n"
        "  present     the call carries it\n"
        "  single_use  the call carries one that was not used before\n"
        "  approval    a person approved this very call (see: mcp-junction approvals --help)\n"
        "  none        no token (only an administrator may grant this)\n\n"
        "examples:\n  mcp-junction grants add build-bot git.git_status 'files.read_*'\n"
        "  mcp-junction grants add build-bot 'git.*' --limit 100/3600 --expires 7d\n"
        "  mcp-junction grants add build-bot files.delete_file --token-mode single_use --ttl 5m\n"
        "  mcp-junction grants add build-bot files.read_file"
        " --when 'args.path.startsWith(\"/srv/public/\")'\n",
    ),
    "renew": action(_renew, "make a new token for a grant and print it, once", _IDS),
    "revoke": action(
        _revoke,
        "revoke grants, at once, also for calls under way",
        option(
            "--token-only", action="store_true", help="revoke only their tokens; the grants stay"
        ),
        _IDS,
    ),
}
