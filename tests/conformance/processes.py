"""Programs that say `listening on URL` on stderr, run for the length of a `with` block.

The fixture and the gateway are both started through here, by tests and by `client_wrapper.py`,
which runs as a script: this module uses nothing but the standard library.
"""

import os
import queue
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

HERE = Path(__file__).resolve().parent
FIXTURE = HERE / "fixture.py"

SAYS_WHERE = re.compile(r"listening on (http://\S+)")
TAIL = 40  # lines of stderr kept for an error message
STARTS_WITHIN = 12.0  # seconds; the suite gives a client 30 altogether
ENDS_WITHIN = 5.0


class StartError(Exception):
    """A program did not come up; the message has the end of its stderr."""


class _Stderr(threading.Thread):
    """Reads a program's stderr to its end, so that it never blocks on it."""

    def __init__(self, stream: IO[str]) -> None:
        super().__init__(daemon=True)
        self._stream = stream
        self.tail: deque[str] = deque(maxlen=TAIL)
        self.url: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def run(self) -> None:
        for line in self._stream:
            self.tail.append(line)
            if match := SAYS_WHERE.search(line):
                self.url.put(match[1])
        self.url.put(None)


@contextmanager
def listening(command: Sequence[str], env: Mapping[str, str] | None = None) -> Iterator[str]:
    """Run `command` and yield the URL it listens on; it is gone when the block ends."""
    process = subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # its own group, so that the end takes all of it
    )
    stderr = _Stderr(process.stderr)
    stderr.start()
    try:
        yield _url(command, stderr)
    finally:
        end(process)
        stderr.join(ENDS_WITHIN)
        process.stderr.close()


def _url(command: Sequence[str], stderr: _Stderr) -> str:
    try:
        url = stderr.url.get(timeout=STARTS_WITHIN)
    except queue.Empty:
        url = None
    if url is None:
        shown = "".join(stderr.tail) or "(nothing on stderr)\n"
        raise StartError(f"`{shlex.join(command)}` did not come up:\n{shown}")
    return url


def end(process: subprocess.Popen[str]) -> None:
    """Ask the process to stop, then kill what is left of its group."""
    process.terminate()
    try:
        process.wait(ENDS_WITHIN)
    except subprocess.TimeoutExpired:
        pass
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


@contextmanager
def fixture(era: str = "both") -> Iterator[str]:
    """The fixture over HTTP."""
    with listening([*_python(), str(FIXTURE), "http", "0", "--era", era]) as url:
        yield url


def fixture_entry(era: str = "both") -> dict[str, object]:
    """An `mcpServers` entry for the fixture over stdio."""
    command, *args = [*_python(), str(FIXTURE), "stdio", "--era", era]
    return {"command": command, "args": args}


def _python() -> list[str]:
    from tests import preloaded  # not where this is a module of a script

    return preloaded.command()


def junction() -> list[str]:
    """The gateway's command: JUNCTION_COMMAND, or the one installed beside this Python."""
    given = os.environ.get("JUNCTION_COMMAND")
    return shlex.split(given) if given else [str(Path(sys.executable).with_name("mcp-junction"))]


def loaded_junction() -> list[str]:
    """The gateway's command where how it starts is not the subject."""
    given = os.environ.get("JUNCTION_COMMAND")
    return shlex.split(given) if given else [*_python(), "-m", "mcp_junction"]


@contextmanager
def gateway(config: Path) -> Iterator[str]:
    """The gateway in front of the servers of `config`, without prefixes, once it is ready."""
    options = ["--host", "127.0.0.1", "--port", "0", "--prefix", "never"]
    data = ["--data-dir", str(config.parent / "data")]
    command = [*loaded_junction(), "serve", "--config", str(config), *options, *data]
    env = {key: value for key, value in os.environ.items() if not key.startswith("JUNCTION_")}
    with listening(command, env) as url:
        wait_until_ready(url)
        yield url


def wait_until_ready(url: str) -> None:
    """Ask `/readyz` until it says yes."""
    question = url.removesuffix("/mcp") + "/readyz"
    deadline = time.monotonic() + STARTS_WITHIN
    while True:
        try:
            with urllib.request.urlopen(question, timeout=STARTS_WITHIN) as answer:
                if answer.status == 200:
                    return
                said = f"status {answer.status}"
        except urllib.error.URLError as error:
            said = str(error)
        if time.monotonic() > deadline:
            raise StartError(f"{question} did not become ready: {said}")
        time.sleep(0.05)
