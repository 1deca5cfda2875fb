"""``mcp-junction serve``: many servers as one network service, with a REST API to administer it."""

from __future__ import annotations

import argparse
import asyncio
import logging
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

if TYPE_CHECKING:
    from mcp_junction.app import Junction
    from mcp_junction.audit.log import AuditLog
    from mcp_junction.cli.storage import Storage
    from mcp_junction.governance.governance import Governance
    from mcp_junction.identity.keys import KeyRing
    from mcp_junction.registry.registry import Registry, RegistryParts
    from mcp_junction.telemetry.bus import Bus


REQUEST_STATE = "request-state"
"""What the key that seals states of requests is derived for: they outlive a restart."""


log = logging.getLogger("mcp_junction.cli")


def run(argv: list[str]) -> int:
    options = make_parser(
        "mcp-junction serve",
        "Serve MCP servers over streamable HTTP at /mcp: those of a config file, if one is given,"
        "\nand those registered over REST at /api/v1 or with `mcp-junction servers add`."
        "\nEach server alone is at /mcp/SERVER, each set of the config at /mcp/SET.",
        "examples:\n  mcp-junction serve --demo\n"
        "  mcp-junction serve --config mcp.json --port 8420\n",
    )
    add_config_options(options)
    add_service_options(options)
    given = options.parse_args(argv)
    set_up_logging(given)
    logging.getLogger("mcp_junction.service").setLevel(logging.INFO)
    if given.demo and given.config:
        raise UsageError("--demo and --config: choose one")
    config = read_config(given, service=True)
    given.store = config.settings.store
    if config.settings.audit == "off":
        raise UsageError("audit: a service cannot be without it; use normal or strict")
    return run_async(_serve(config, given))


async def _serve(config: Config, given: argparse.Namespace) -> int:
    from mcp_junction.api.context import ApiContext
    from mcp_junction.cli.storage import open_storage
    from mcp_junction.governance.assembly import open_governance
    from mcp_junction.governance.policy_upgrade import migrate_agents
    from mcp_junction.identity.keys import KeyRing, adopt_admin_key, sign_existing_keys
    from mcp_junction.registry.context import RegistryContext
    from mcp_junction.registry.registry import Registry, RegistryParts
    from mcp_junction.registry.tool_settings import carry_over_tool_settings
    from mcp_junction.service import Service
    from mcp_junction.telemetry.bus import Bus

    stop = asyncio.Event()
    hurried = stop_on_signals((signal.SIGTERM, signal.SIGINT), stop.set)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        storage = await enter(open_storage(given, serving=True))
        await storage.store.servers.seal_urls()
        audit = await enter(storage.audit_log())
        bus = await enter(Bus(storage.store.events, audit.writer))
        parts = RegistryParts(RegistryContext(config.settings, storage.store, audit, bus))
        await sign_existing_keys(storage.store, audit, storage.folder)
        await migrate_agents(storage.store, audit, storage.folder)
        await carry_over_tool_settings(storage.store, audit, storage.folder)
        context = parts.context
        governance = await open_governance(
            config.settings, storage.store, audit, bus, context.tool_settings, context.clock
        )
        junction = await enter(_make_junction(config, parts, storage, governance))
        keys = await KeyRing.open(storage.store)
        await adopt_admin_key(keys, {**read_service_dotenv(given), **variables()})
        registry = Registry(junction, parts)
        service = Service(
            junction,
            keys,
            given.host,
            ApiContext(junction, registry, bus, storage.store, keys),
            owner_without_key=given.owner_without_key,
            on_loaded=tune_interpreter,
            on_listening=_print_demo_words if given.demo else None,
        )
        await enter(registry)
        await _make_first_key(keys, storage, audit)
        _follow_file(given, config, junction, registry, bus)
        _forget(config.settings.audit_retention_days, storage, audit, junction)
        _index_audit(storage, audit, junction)
        await service.serve(given.host, given.port, stop, hurried)
    return 0


def _make_junction(
    config: Config, parts: RegistryParts, storage: Storage, governance: Governance
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
        state_key=storage.vault.derive_keys(REQUEST_STATE)[0],
        clock=context.clock,
        supervision=context.supervision,
        call_sinks=parts.call_sinks,
        server_sinks=(*parts.server_sinks, *governance.server_sinks),
        governance=governance,
        review=parts.tools,
    )


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


def _forget(days: int, storage: Storage, audit: AuditLog, junction: Junction) -> None:
    """Remove what is too old from the audit, and expired grants, daily; 0 days is never."""
    from mcp_junction.audit.retention import retire_daily
    from mcp_junction.governance.policy_sync import retire_policy_daily

    if days:
        retire = partial(retire_policy_daily, days, storage.store.policy, junction.clock)
        junction.tasks.supervise("policy retention", retire, is_vital=False)
        trail, points, keys = storage.store.audit, storage.checkpoints, storage.audit_keys
        forget = partial(retire_daily, days, trail, audit, points, keys, junction.clock)
        junction.tasks.supervise("audit retention", forget, is_vital=False)


def _index_audit(storage: Storage, audit: AuditLog, junction: Junction) -> None:
    """Index what other writers of the audit left out, also those of before there was an index."""
    from mcp_junction.audit.indexing import index_regularly

    index = partial(index_regularly, storage.store.audit, audit.writer, junction.clock)
    junction.tasks.supervise("audit index", index, is_vital=False)


def _print_demo_words(url: str) -> None:
    from mcp_junction.cli.demo import greeting

    print(greeting(url), file=sys.stderr, flush=True)


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
