"""Loads the shared parts of the test suite: every `tests/plugin_*.py`, and the real servers.

Fixtures and hooks live in those files, one subject each, not here. Markers are declared in
`pyproject.toml`. Under `--import-mode=importlib` a module of this folder is `tests.<name>`.
"""

import signal
from pathlib import Path

# Whoever started the tests may ignore it (nohup does), and programs under test would inherit that.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

pytest_plugins = (
    *(f"tests.{path.stem}" for path in sorted(Path(__file__).parent.glob("plugin_*.py"))),
    "tests.peers.servers",
)
