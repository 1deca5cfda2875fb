"""The program itself, serving the demo servers, for the commands that talk to it."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

from tests.plugin_journeys import PROGRAM, own_environment

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
    yield SimpleNamespace(url=url, folder=folder, said=said)
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=BOUND)
    assert process.returncode == 0, said + rest
    assert "Traceback" not in said + rest
