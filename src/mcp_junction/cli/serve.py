"""``mcp-junction serve``: registered servers and those of a config file as one network service."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from mcp_junction.cli.options import (
    add_config_options,
    add_store_options,
    parser,
    read_config,
    set_up_logging,
)
from mcp_junction.cli.runner import run_async
from mcp_junction.config.load import Config
from mcp_junction.errors import UsageError

if TYPE_CHECKING:
    from mcp_junction.app import Junction
    from mcp_junction.bus.bus import Bus
    from mcp_junction.registry.registry import Registry


log = logging.getLogger("mcp_junction.cli")


def run(argv: list[str]) -> int:
    options = parser(
        "mcp-junction serve",
        "Serve every registered server, and those of a config file, over streamable HTTP at /mcp."
        "\nEach server alone is at /mcp/SERVER, each set of the config at /mcp/SET.",
        "example:\n  mcp-junction serve --config mcp.json --port 8420\n",
    )
    add_config_options(options)
    network = options.add_argument_group("network")
    network.add_argument(
        "--host", default="127.0.0.1", help="where to listen; off this machine needs keys"
    )
    network.add_argument("--port", type=int, default=8420, help="default: 8420; 0 takes a free one")
    network.add_argument(
        "--require-key", action="store_true", default=None, help="ask for a key on loopback too"
    )
    network.add_argument(
        "--trusted-proxies",
        metavar="LIST",
        help="addresses or networks of proxies whose X-Forwarded-* headers are believed",
    )
    add_store_options(options)
    given = options.parse_args(argv)
    set_up_logging(given)
    logging.getLogger("mcp_junction.service").setLevel(logging.INFO)
    config = read_config(given, service=True)
    given.store = config.settings.store
    if config.settings.audit == "off":
        raise UsageError("audit: a service cannot be without it; use normal or strict")
    return run_async(_serve(config, given))


async def _serve(config: Config, given: argparse.Namespace) -> int:
    from mcp_junction.app import Junction
    from mcp_junction.bus.bus import Bus
    from mcp_junction.calls.stages.audit import CallAudit
    from mcp_junction.cli.storage import opened
    from mcp_junction.identity.keys import KeyRing
    from mcp_junction.protocol.names import PLATFORM
    from mcp_junction.registry.registry import Registry
    from mcp_junction.service import Service

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        storage = await enter(opened(given))
        audit = await enter(storage.audit_log())
        bus = await enter(Bus(storage.store.events, audit.writer))
        calls = CallAudit(audit)
        stages = (calls.intend,) if config.settings.audit == "strict" else ()
        junction = await enter(
            Junction(config, canonical=PLATFORM, supervised=True, starts=False, stages=stages)
        )
        junction.watchers.append(calls.ended)
        keys = await KeyRing.open(storage.store)
        service = Service(junction, keys, given.host)
        registry = await enter(Registry(junction, storage.store, audit, bus))
        _follow_file(given, config, junction, registry, bus)
        await service.serve(given.host, given.port, stop)
    return 0


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
    watch = FileWatch(registry, bus, given.config, read, looks=config.settings.watch_config)
    loop.add_signal_handler(signal.SIGHUP, watch.now)
    junction.tasks.spawn(watch.run())
