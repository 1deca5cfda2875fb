"""`server-everything` three times - over stdio, streamable HTTP and SSE - as a config file.

The two that listen are processes of the test's own; the gateway starts the third.
"""

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.conformance.processes import end, listening, loaded_junction, wait_until_ready
from tests.peers.servers import Peers
from tests.plugin_journeys import own_environment

PROGRAM = "mcp-server-everything"
KEYS = ("child", "stream", "sse")
STARTS_WITHIN = 20.0


@contextmanager
def everything(peers: Peers, transport: str) -> Iterator[int]:
    """The server over ``transport``, on a free port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [str(peers.npm_program(PROGRAM)), transport],
        env={**os.environ, "PATH": peers.path(), "PORT": str(port)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        _wait_for(port, process)
        yield port
    finally:
        end(process)


def _wait_for(port: int, process: subprocess.Popen[Any]) -> None:
    deadline = time.monotonic() + STARTS_WITHIN
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), 1):
                break
        except OSError:
            assert process.poll() is None, f"{PROGRAM} ended with {process.returncode}"
            assert time.monotonic() < deadline, f"{PROGRAM} does not listen on {port}"
            time.sleep(0.05)


@contextmanager
def three(peers: Peers, folder: Path) -> Iterator[Path]:
    """A config file with the three of `KEYS`, which are up."""
    with everything(peers, "streamableHttp") as streaming, everything(peers, "sse") as sse:
        servers = {
            "child": peers.entries()["everything"],
            "stream": {"type": "http", "url": f"http://127.0.0.1:{streaming}/mcp"},
            "sse": {"type": "sse", "url": f"http://127.0.0.1:{sse}/sse"},
        }
        path = folder / "mcp.json"
        path.write_text(json.dumps({"mcpServers": servers}), "utf-8")
        yield path


@contextmanager
def serving(config: Path, *options: str) -> Iterator[str]:
    """`mcp-junction serve` on ``config``; yields the URL of its endpoint once it is ready."""
    data = ["--data-dir", str(config.parent / "data")]
    command = [*loaded_junction(), "serve", "--config", str(config), "--port", "0", *data, *options]
    with listening(command, own_environment()) as url:
        wait_until_ready(url)
        yield url
