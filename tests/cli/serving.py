"""The program itself, serving the demo servers, for the commands that talk to it."""

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

from tests.plugin_journeys import PROGRAM, own_environment

from mcp_junction.cli.remote import SERVERS, ServiceClient
from mcp_junction.errors import JunctionError

BOUND = 60


@contextmanager
def serve_demo(folder: Path, *options: str, **variables: str) -> Iterator[SimpleNamespace]:
    """Serve the demo; it must end well on Ctrl-C."""
    process = subprocess.Popen(
        [str(PROGRAM), "serve", "--demo", "--port", "0", "--data-dir", str(folder), *options],
        env=own_environment(variables),
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    said = ""
    while "Ctrl-C ends it" not in said:
        line = process.stderr.readline()
        assert line, f"it has ended:\n{said}"
        said += line
    url = said.partition("listening on ")[2].partition("/mcp")[0]
    try:
        _wait_for_servers(url, folder)
        yield SimpleNamespace(url=url, folder=folder, said=said)
    finally:
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=BOUND)
    assert process.returncode == 0, said + rest
    assert "Traceback" not in said + rest


def _wait_for_servers(url: str, folder: Path) -> None:
    """Wait until the demo servers are connected, and their tools known."""
    remote = ServiceClient(url, (folder / "admin.key").read_text().strip())
    until = time.monotonic() + BOUND
    while time.monotonic() < until:
        servers = []
        with suppress(JunctionError):  # a busy machine may keep the store from answering
            servers = list(remote.pages(SERVERS))
        if servers and all(one["status"] == "CONNECTED" and one["tool_count"] for one in servers):
            return
        time.sleep(0.05)
    raise AssertionError(f"they are not connected: {servers}")
