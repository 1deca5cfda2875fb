"""``mcp-junction serve``: many servers as one network service, with a REST API to administer it."""

from __future__ import annotations

import argparse
import asyncio
import logging
import shlex
import signal
import sys
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from mcp_junction.cli.environment import variables
from mcp_junction.cli.options import (
    add_config_options,
    add_service_options,
    make_parser,
    read_config,
    read_service_dotenv,
    set_up_logging,
)
from mcp_junction.cli.runner import run_async, stop_on_signals, tune_interpreter
from mcp_junction.config.load import Config
from mcp_junction.errors import UsageError
from mcp_junction.memory import tune_allocator

if TYPE_CHECKING:
    from mcp_junction.app import Junction
    from mcp_junction.audit.log import AuditLog
    from mcp_junction.cli.storage import Storage
    from mcp_junction.config.door import DoorConfig
    from mcp_junction.credentials.credentials import Credentials
    from mcp_junction.governance.governance import Governance
    from mcp_junction.identity.keys import KeyRing
    from mcp_junction.identity.tokens import AccessTokens
    from mcp_junction.registry.registry import Registry, RegistryParts
    from mcp_junction.store.credentials import CredentialTables
    from mcp_junction.telemetry.bus import Bus


REQUEST_STATE = "request-state"
"""What the keys that seal states of requests are derived for: they outlive a restart."""
VAULT_EVERY = 0.3
"""Seconds between looks at the file of the vault's keys."""


log = logging.getLogger("mcp_junction.cli")


def run(argv: list[str]) -> int:
    options = make_parser(
        "mcp-junction serve",
        "Serve MCP servers over streamable HTTP at /mcp: those of a config file, if one is given,"
        "\nand those registered over REST at /api/v1 or with `mcp-junction servers add`."
        "\nEach server alone is at /mcp/SERVER, each set of the config at /mcp/SET.",
        "examples:\n  mcp-junction serve --demo\n"
        "  mcp-junction serve --config mcp.json --port 8420\n",
        add_config_options,
        add_service_options,
    )
    given = options.parse_args(argv)
    set_up_logging(given)
    logging.getLogger("mcp_junction.service").setLevel(logging.INFO)
    if given.demo and given.config:
        raise UsageError("--demo and --config: choose one")
    config = read_config(given, service=True)
    given.store = config.settings.store
    if config.settings.audit == "off":
        raise UsageError("audit: a service cannot be without it; use normal or strict")
    tune_allocator()
    return run_async(_serve(config, given))


async def _serve(config: Config, given: argparse.Namespace) -> int:
    from mcp_junction.api.context import ApiContext
    from mcp_junction.cli.storage import open_storage
    from mcp_junction.governance.governance import open_governance
    from mcp_junction.registry.context import RegistryContext
    from mcp_junction.registry.registry import Registry, RegistryParts
    from mcp_junction.registry.search_vectors import make_index
    from mcp_junction.service import Service
    from mcp_junction.telemetry.bus import Bus

    stop = asyncio.Event()
    hurried = stop_on_signals((signal.SIGTERM, signal.SIGINT), stop.set)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        storage = await enter(open_storage(given, serving=True))
        await _seal(storage)
        audit = await enter(storage.audit_log())
        await storage.store.vault_users.report(audit.writer, storage.vault.key_ids)
        bus = await enter(Bus(storage.store.events, audit.writer))
        shared = config.settings, storage.store, audit, bus
        parts = RegistryParts(RegistryContext(*shared))
        await _upgrade(storage, audit)
        context = parts.context
        governance = await open_governance(
            *shared, context.tool_settings, context.clock, config.door
        )
        credentials = await _open_credentials(config, parts, storage, stack)
        junction = await enter(_make_junction(config, parts, storage, governance, credentials))
        keys = await _open_keys(config, given, storage, governance)
        registry = Registry(junction, parts)
        api = ApiContext(junction, registry, bus, storage.store, keys, credentials, storage.vault)
        vectors = make_index(junction, registry, storage.store, storage.folder)
        api.searching.use_vectors(storage.store, lambda: vectors)
        service = Service(
            junction,
            keys,
            given.host,
            api,
            owner_without_key=given.owner_without_key,
            on_loaded=tune_interpreter,
            on_listening=partial(_greet, given.data_dir) if given.demo else None,
        )
        await enter(registry)
        await _make_first_key(keys, storage, audit)
        _follow_file(given, config, junction, registry, bus)
        _start_jobs(config, storage, audit, junction)
        await service.serve(given.host, given.port, stop, hurried)
    return 0


async def _open_keys(
    config: Config, given: argparse.Namespace, storage: Storage, governance: Governance
) -> KeyRing:
    """Read the keys, and have access tokens accepted beside them where a door is configured."""
    from mcp_junction.identity.keys import KeyRing, adopt_admin_key

    keys = await KeyRing.open(storage.store)
    if config.door is not None:
        keys.tokens = _make_access_tokens(config.door, storage, governance)
    await adopt_admin_key(keys, {**read_service_dotenv(given), **variables()})
    return keys


async def _seal(storage: Storage) -> None:
    """Seal what is not, or not by the current key."""
    await storage.store.servers.seal_urls()
    if len(storage.vault.key_ids) > 1:
        await storage.store.protected.renew()


async def _upgrade(storage: Storage, audit: AuditLog) -> None:
    """Sign and carry over what an earlier version has stored; each of them once."""
    from mcp_junction.governance.policy_admin import migrate_agents
    from mcp_junction.identity.keys import sign_existing_keys
    from mcp_junction.registry.tool_settings import carry_over_tool_settings

    for upgrade in (sign_existing_keys, migrate_agents, carry_over_tool_settings):
        await upgrade(storage.store, audit, storage.folder)


async def _open_credentials(
    config: Config, parts: RegistryParts, storage: Storage, stack: AsyncExitStack
) -> Credentials:
    """Read the credentials for servers; they are let go of after the servers."""
    from mcp_junction.credentials.credentials import Credentials

    async def tables() -> CredentialTables:
        return storage.store.credentials

    settings = config.settings
    credentials = Credentials(tables, settings.name, settings.public_url)
    credentials.listeners.append(parts.lifecycle.note_credential)
    stack.push_async_callback(credentials.close)
    await credentials.load()
    return credentials


def _make_junction(
    config: Config,
    parts: RegistryParts,
    storage: Storage,
    governance: Governance,
    credentials: Credentials,
) -> Junction:
    """Compose a Junction with the registry and the audit as listeners."""
    from mcp_junction.app import Junction
    from mcp_junction.calls.stages.audit import CallAudit
    from mcp_junction.protocol.names import PLATFORM

    context = parts.context
    return Junction(
        config,
        environ=variables(),
        canonical=PLATFORM,
        supervised=True,
        starts=False,
        audit=CallAudit(context.audit),
        state_keys=partial(storage.vault.derive_keys, REQUEST_STATE),
        clock=context.clock,
        supervision=context.supervision,
        call_sinks=parts.call_sinks,
        server_sinks=(*parts.server_sinks, *governance.server_sinks),
        governance=governance,
        review=parts.tools,
        token_sources=credentials,
    )


def _make_access_tokens(door: DoorConfig, storage: Storage, governance: Governance) -> AccessTokens:
    """Make what verifies the access tokens of an issuer, and puts in force what they give."""
    from mcp_junction.identity.issuer_keys import IssuerKeys
    from mcp_junction.identity.tokens import AccessTokens

    grants = governance.claim_grants
    admit = grants.admit if grants is not None else None
    return AccessTokens(door, IssuerKeys(door), storage.store.revoked_subjects, admit)


async def _make_first_key(keys: KeyRing, storage: Storage, audit: AuditLog) -> None:
    """Make the administrator's key, if there is none, and print it, once."""
    from mcp_junction.identity.keys import ADMIN_KEY_FILE, make_admin_key
    from mcp_junction.policy.principal import LOCAL_OWNER, Role

    if keys.has_admin:
        return
    me, role = LOCAL_OWNER, Role.ADMIN.value
    async with audit.act(me.id, me.role, "key.create", target=role, detail={"role": role}):
        text = await make_admin_key(keys, storage.folder)
    print(
        f"The administrator's key, shown this once:\n\n  {text}\n\n"
        f"Commands on this machine find it in {storage.folder / ADMIN_KEY_FILE}; delete that file"
        " if they should not.\n",
        file=sys.stderr,
        flush=True,
    )


def _start_jobs(config: Config, storage: Storage, audit: AuditLog, junction: Junction) -> None:
    """Start what runs beside the service: upkeep of the store, and following the vault's keys.

    The index of the audit is made of what other writers left out, also those from before there
    was one.
    """
    from mcp_junction.audit.maintenance import index_regularly

    _forget(config.settings.audit_retention_days, storage, audit, junction)
    index = partial(index_regularly, storage.store.audit, audit.writer, junction.clock)
    junction.tasks.supervise("audit index", index, is_vital=False)
    _follow_vault(storage, audit, junction)


def _forget(days: int, storage: Storage, audit: AuditLog, junction: Junction) -> None:
    """Remove what is too old from the audit, and expired grants, daily; 0 days is never."""
    from mcp_junction.audit.maintenance import retire_daily
    from mcp_junction.cli.storage import AUDIT
    from mcp_junction.governance.approvals import retire_approvals_daily
    from mcp_junction.governance.policy_sync import remove_old_grants_daily

    store, points, clock = storage.store, storage.checkpoints, junction.clock
    keys = partial(storage.vault.derive_keys, AUDIT)
    jobs = {
        "policy retention": partial(remove_old_grants_daily, days, store.policy, clock),
        "approvals retention": partial(retire_approvals_daily, days, store.approvals, clock),
        "audit retention": partial(retire_daily, days, store.audit, audit, points, keys, clock),
    }
    for name, job in jobs.items() if days else ():
        junction.tasks.supervise(name, job, is_vital=False)


def _follow_vault(storage: Storage, audit: AuditLog, junction: Junction) -> None:
    """Take over the vault's keys when their file changes, and say so to a rotation."""

    async def follow() -> None:
        while True:
            if storage.vault.refresh() or storage.vault.key_ids != reported:
                current = list(storage.vault.key_ids)
                await storage.store.vault_users.report(audit.writer, current)
                reported[:] = current  # not before: what could not be reported is tried again
                log.warning("the vault has other keys now; %s seals", storage.vault.key_id)
            await junction.clock.sleep(VAULT_EVERY)

    reported = list(storage.vault.key_ids)
    junction.tasks.supervise("vault", follow, is_vital=False)


def _greet(folder: str | None, url: str) -> None:
    """Print what can be done with ``serve --demo``, once it listens.

    Commands find the key in the data directory: they are shown with it where it was given.
    """
    program = sys.argv[0] if sys.argv[0].endswith("mcp-junction") else "mcp-junction"
    where = "" if url.endswith(":8420") else f" --url {url}"
    where += f" --data-dir {shlex.quote(folder)}" if folder else ""
    words = f"""
Junction is up, with three small servers behind one endpoint: clock, notes and arithmetic.

  Give it to your assistant    {url}/mcp
                               (Claude Code: claude mcp add --transport http junction {url}/mcp)
  See the servers              {program} servers list{where}
  Call a tool                  {program} tools call{where} arithmetic.evaluate \
'{{"expression": "6 * 7"}}'
  Add a server of your own     {program} servers add{where} NAME -- COMMAND [ARGS]
  Read about the REST API      {url}/api/v1/docs

Ctrl-C ends it.
"""
    print(words, file=sys.stderr, flush=True)


def _follow_file(
    given: argparse.Namespace, config: Config, junction: Junction, registry: Registry, bus: Bus
) -> None:
    """Take over the config file when it changes, and on SIGHUP."""
    loop = asyncio.get_running_loop()
    if not given.config:
        loop.add_signal_handler(signal.SIGHUP, log.warning, "there is no config file to read")
        return
    from mcp_junction.registry.reload import FileWatch

    read = partial(read_config, given, service=True)
    watch = FileWatch(registry, bus, given.config, read, polls=config.settings.watch_config)
    loop.add_signal_handler(signal.SIGHUP, watch.reload_soon)
    junction.tasks.supervise("config file", watch.run, is_vital=False)
