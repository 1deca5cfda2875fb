"""A server of one era with something for each feature that crosses the gateway.

    python -m tests.journeys_eras.server http PORT --era old|new --ledger FILE    PORT 0: any
    python -m tests.journeys_eras.server stdio --era old|new --ledger FILE

Run from the repository's root, or with it on PYTHONPATH. What the server lived through is in the
ledger, a line for each event, so that a test sees what became of a call. The offers are in
`offers.py`, how a server asks in `questions.py`; the eras and transports are the conformance
fixture's.
"""

import argparse
import socket
import sys
import warnings

import anyio
import uvicorn
from mcp.server.caching import CACHEABLE_METHODS, CacheHint
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import ListenHandler
from mcp.shared.exceptions import MCPDeprecationWarning
from tests.conformance.offering.eras import Era, of_era, serve_streams
from tests.conformance.offering.levels import set_level
from tests.journeys_eras import ledger, news, offers


class Announcing(Server):
    """A server that announces changes of all its lists; the SDK's default is none."""

    def create_initialization_options(self, *args: object) -> InitializationOptions:
        return super().create_initialization_options(NotificationOptions(True, True, True))


def build(name: str, era: Era) -> Server:
    of_old_era = {
        "on_subscribe_resource": news.subscribe,
        "on_unsubscribe_resource": news.unsubscribe,
        "on_set_logging_level": set_level,
    }
    of_new_era = {"on_subscriptions_listen": ListenHandler(news.BUS)}
    server = Announcing(
        name,
        version="1.0.0",
        cache_hints={
            method: CacheHint(ttl_ms=1000, scope="public") for method in CACHEABLE_METHODS
        },
        on_list_tools=offers.list_tools,
        on_call_tool=offers.call_tool,
        on_list_prompts=offers.list_prompts,
        on_get_prompt=offers.get_prompt,
        on_list_resources=offers.list_resources,
        on_list_resource_templates=offers.list_templates,
        on_read_resource=offers.read_resource,
        on_completion=offers.complete,
        **(of_old_era if era is Era.OLD else of_new_era),
    )
    sealing = RequestStateSecurity.ephemeral()
    server.middleware.append(RequestStateBoundary(sealing, default_audience=name))
    return server


def serve_http(server: Server, era: Era, port: int) -> None:
    app = of_era(server.streamable_http_app(), era)
    # As the fixture: the other parser leaves white space around the values of headers.
    config = uvicorn.Config(
        app, http="h11", ws="none", log_level="warning", timeout_graceful_shutdown=1
    )
    with socket.create_server(("127.0.0.1", port), backlog=1024) as listening:
        bound = listening.getsockname()[1]
        print(f"listening on http://127.0.0.1:{bound}/mcp", file=sys.stderr, flush=True)
        uvicorn.Server(config).run(sockets=[listening])


async def serve_stdio(server: Server, era: Era) -> None:
    async with stdio_server() as (read, write):
        await serve_streams(server, era, read, write)


def options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A server of one era.")
    transports = parser.add_subparsers(dest="transport", required=True)
    http = transports.add_parser("http")
    http.add_argument("port", type=int)
    stdio = transports.add_parser("stdio")
    for transport in (http, stdio):
        transport.add_argument("--era", type=Era, choices=(Era.OLD, Era.NEW), required=True)
        transport.add_argument("--ledger", required=True)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    warnings.filterwarnings("ignore", category=MCPDeprecationWarning)
    chosen = options(arguments)
    ledger.open_file(chosen.ledger)
    server = build(f"{chosen.era}-server", chosen.era)
    if chosen.transport == "http":
        serve_http(server, chosen.era, chosen.port)
    else:
        anyio.run(serve_stdio, server, chosen.era)


if __name__ == "__main__":
    main(sys.argv[1:])
