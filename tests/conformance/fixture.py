"""The project's own server for the official conformance suite, in both eras and on both transports.

    python fixture.py http PORT [--era old|new|both]    PORT 0: any; stderr says which
    python fixture.py stdio [--era old|new|both]

What it offers is in `offering/`. This file has the transports and the command line. Run it as a
script, with the SDK installed; it needs nothing else of this repository.
"""

import argparse
import socket
import sys
import warnings

import anyio
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPDeprecationWarning
from offering.eras import Era, of_era, serve_streams
from offering.events import Events
from offering.server import build

RETRY = 100  # milliseconds a client should wait before it resumes a stream


def serve_http(server: Server, era: Era, port: int) -> None:
    app = of_era(server.streamable_http_app(event_store=Events(), retry_interval=RETRY), era)
    config = uvicorn.Config(
        app,
        # The suite checks that white space around a header's value does not matter. Uvicorn's
        # other parser leaves it there, and the SDK compares the value as it comes.
        http="h11",
        ws="none",
        log_level="warning",
        timeout_graceful_shutdown=1,  # open streams would hold it up for ever
    )
    with socket.create_server(("127.0.0.1", port)) as listening:
        bound = listening.getsockname()[1]
        print(f"listening on http://127.0.0.1:{bound}/mcp", file=sys.stderr, flush=True)
        uvicorn.Server(config).run(sockets=[listening])


async def serve_stdio(server: Server, era: Era) -> None:
    async with stdio_server() as (read, write):
        await serve_streams(server, era, read, write)


def options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A server for the official conformance suite.")
    transports = parser.add_subparsers(dest="transport", required=True)
    http = transports.add_parser("http")
    http.add_argument("port", type=int)
    stdio = transports.add_parser("stdio")
    for transport in (http, stdio):
        transport.add_argument("--era", type=Era, choices=list(Era), default=Era.BOTH)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    # What the suite of the handshake era asks for is deprecated in the other.
    warnings.filterwarnings("ignore", category=MCPDeprecationWarning)
    chosen = options(arguments)
    if chosen.transport == "http":
        serve_http(build(), chosen.era, chosen.port)
    else:
        anyio.run(serve_stdio, build(), chosen.era)


if __name__ == "__main__":
    main(sys.argv[1:])
