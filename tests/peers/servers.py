"""Real MCP servers from the package registries, as entries for an `mcpServers` file.

`install.sh` puts them in `.peers/`, with the TypeScript SDKs and the conformance suite. A test that
wants them is marked `peers` and takes the `peers` fixture, which skips with the reason when they
are not there. This module starts nothing: it only says how each is started.
"""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HOME = Path(__file__).resolve().parents[2] / ".peers"


@dataclass(frozen=True)
class Peers:
    """The installation in `home`, and `scratch`, an empty git repository for servers to work in."""

    home: Path
    scratch: Path

    def entries(self) -> dict[str, dict[str, Any]]:
        """An `mcpServers` entry for each server, keyed by its short name."""
        return {
            "time": self._python("mcp-server-time", "--local-timezone", "UTC"),
            "fetch": self._python("mcp-server-fetch"),
            "git": self._python("mcp-server-git", "--repository", str(self.scratch)),
            "everything": self._node("mcp-server-everything"),
            "filesystem": self._node("mcp-server-filesystem", str(self.scratch)),
            "memory": self._node(
                "mcp-server-memory", env={"MEMORY_FILE_PATH": str(self.scratch / "memory.jsonl")}
            ),
            "sequential-thinking": self._node("mcp-server-sequential-thinking"),
        }

    def _python(self, program: str, *args: str) -> dict[str, Any]:
        return self._entry(self.home / "bin" / program, args, {})

    def _node(
        self, program: str, *args: str, env: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        return self._entry(self.npm_program(program), args, env or {})

    def _entry(
        self, program: Path, args: tuple[str, ...], env: Mapping[str, str]
    ) -> dict[str, Any]:
        return {"command": str(program), "args": list(args), "env": {"PATH": self.path(), **env}}

    def npm_program(self, name: str) -> Path:
        return self.home / "node/node_modules/.bin" / name

    def path(self) -> str:
        """A PATH for the npm programs, which begin with `env node`: our Node comes first."""
        return os.pathsep.join([str(self.home / "bin"), os.environ.get("PATH", os.defpath)])


def why_missing(home: Path = HOME) -> str | None:
    """The reason the servers cannot be used, or None when they can."""
    if (home / ".ready").exists():
        return None
    skipped = home / ".skipped"
    reason = skipped.read_text("utf-8").strip() if skipped.exists() else "run `make peers`"
    return f"PEERS SKIPPED: {reason}"


def pytest_report_header() -> str | None:
    return why_missing()


@pytest.fixture
def peers(tmp_path: Path) -> Peers:
    """Real servers to talk to, with a scratch repository of this test's own."""
    if reason := why_missing():
        pytest.skip(reason)
    scratch = tmp_path / "peers"
    subprocess.run(["git", "init", "--quiet", scratch], check=True)
    return Peers(HOME, scratch)
