"""A program of its own: a gateway starts, and is asked at once for something of the REST API.

Then its server is connected, its tools are classified and searched for. Prints as JSON what was
answered, whether the routes were loaded when it listened, what of the model of skills was loaded
before there was a tool and after all that, and the longest that the event loop was held up from the
beginning on, by whatever thread.
"""

import asyncio
import json
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

import uvloop
from tests.plugin_rest import CALL, SERVERS, Served, _SqliteOpener, registration, serve_api
from tests.pulse import Pulse

from mcp_junction.policy.principal import Principal, Role
from mcp_junction.vault.vault import Vault

ADMIN = Principal("ann", Role.ADMIN)
BOUND = 60


async def asked(port: int, key: str, method: str, path: str, body: object = None) -> int:
    """The status of one answer. By hand: a client's own start-up would hold up the loop, too."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    content = b"" if body is None else json.dumps(body).encode()
    head = (
        f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(content)}\r\n"
        "connection: close\r\n\r\n"
    )
    writer.write(head.encode() + content)
    answer = await asyncio.wait_for(reader.read(), BOUND)
    writer.close()
    return int(answer.split(b" ", 2)[1])


async def classify(served: Served) -> None:
    """Connect the server and wait until its tools are classified."""
    await served.registry.connect("peer", ADMIN)
    async with asyncio.timeout(BOUND):
        while True:
            tools = await served.registry.tools.all("peer")
            if tools and all(one.is_classified for one in tools):
                return
            await asyncio.sleep(0.01)


def models() -> list[str]:
    """What of the model of skills is in this process, as Python and as the system know it."""
    names = {"numpy", "static_rows"}
    maps = Path("/proc/self/maps")
    files = maps.read_text() if maps.exists() else ""
    return sorted(name for name in names if name in sys.modules or f"/{name}" in files)


async def main(folder: Path) -> None:
    before = "mcp_junction.api.app" in sys.modules
    async with AsyncExitStack() as stack, Pulse(time.process_time) as pulse:
        opener = _SqliteOpener(stack, folder, Vault([bytes(range(32))]))
        served = await serve_api(stack, opener, only=("admin",), has_worker=True)
        key = served.keys["admin"]
        loaded = served.context.front.app is not None
        requests = [
            ("GET", SERVERS, None),
            ("POST", SERVERS, registration(auto_connect=False)),
            ("GET", "/api/v1/openapi.json", None),
            ("GET", "/api/v1/docs", None),
            ("POST", CALL, {"name": "peer.echo"}),
        ]
        statuses = [await asked(served.port, key, *request) for request in requests]
        await served.registry.skills.classifier.wait_until_done()
        report = {"statuses": statuses, "before": before, "loaded": loaded, "models": models()}
        await classify(served)
        search = {"query": "say it again", "limit": 3}
        report["search"] = await asked(served.port, key, "POST", "/api/v1/search", search)
        report["models_later"] = models()
        print(json.dumps({**report, "worst": pulse.worst, "beats": pulse.beats}))


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1])))
