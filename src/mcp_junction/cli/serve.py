"""``mcp-junction serve``: the servers of a config file as one network service."""

from __future__ import annotations

import asyncio
import logging
import signal
from pathlib import Path

from mcp_junction.cli.options import (
    add_config_options,
    add_data_dir,
    data_dir,
    parser,
    read_config,
    set_up_logging,
)
from mcp_junction.cli.runner import run_async
from mcp_junction.config.load import Config


def run(argv: list[str]) -> int:
    options = parser(
        "mcp-junction serve",
        "Serve every server of a config file over streamable HTTP at /mcp."
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
    add_data_dir(options)
    given = options.parse_args(argv)
    set_up_logging(given)
    logging.getLogger("mcp_junction.service").setLevel(logging.INFO)
    config = read_config(given)
    return run_async(_serve(config, data_dir(given), given.host, given.port))


async def _serve(config: Config, where: Path, host: str, port: int) -> int:
    from mcp_junction.app import Junction
    from mcp_junction.identity.keys import KeyRing
    from mcp_junction.protocol.names import PLATFORM
    from mcp_junction.service import Service

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with Junction(config, canonical=PLATFORM, supervised=True) as junction:
        service = Service(junction, KeyRing(where), host)
        junction.greet()
        await service.serve(host, port, stop)
    return 0
