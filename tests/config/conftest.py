"""Config files on disk, and what loading them gives."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from mcp_junction.config.load import Config, load
from mcp_junction.errors import ConfigError, Problem


class Folder:
    """A folder with a config file in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = path / "mcp.json"

    def write(self, content: Any) -> None:
        text = content if isinstance(content, str) else json.dumps(content)
        self.file.write_text(text, encoding="utf-8")

    def load(
        self, content: Any, environ: Mapping[str, str] | None = None, **options: Any
    ) -> Config:
        self.write(content)
        return load(str(self.file), environ or {}, options)

    def load_leniently(self, content: Any, environ: Mapping[str, str] | None = None) -> Config:
        self.write(content)
        return load(str(self.file), environ or {}, {}, lenient=True)

    def problems(
        self, content: Any, environ: Mapping[str, str] | None = None, **options: Any
    ) -> list[Problem]:
        """What is wrong with it."""
        with pytest.raises(ConfigError) as caught:
            self.load(content, environ, **options)
        assert all(str(problem) in str(caught.value) for problem in caught.value.problems)
        return caught.value.problems


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.fixture
def server(folder: Folder) -> Callable[..., Any]:
    """The one server of a file, from its entry."""

    def read(entry: Any, environ: Mapping[str, str] | None = None, **options: Any) -> Any:
        (found,) = folder.load({"mcpServers": {"s": entry}}, environ, **options).servers
        return found

    return read
