"""The files in ``examples/`` fit the program and each other."""

import json
import subprocess
import sys
from pathlib import Path

from mcp_junction.demo import DEMOS

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


def servers(name):
    return json.loads((EXAMPLES / name).read_text())["mcpServers"]


def test_the_demo_file_has_every_demo_server():
    entries = servers("demo.json")
    assert set(entries) == set(DEMOS)
    for name, entry in entries.items():
        assert entry["command"] == "mcp-junction"
        assert entry["args"][:2] == ["demo", name]


def test_the_claude_desktop_file_points_at_the_program():
    (entry,) = servers("claude_desktop_config.json").values()
    assert entry["command"].endswith("/.venv/bin/mcp-junction")
    assert entry["args"][0] == "--config"


def next_steps(*options):
    script = [sys.executable, *options, str(EXAMPLES / "next_steps.py")]
    shown = subprocess.run(script, capture_output=True, text=True, timeout=30)
    assert (shown.returncode, shown.stderr) == (0, "")
    return shown.stdout


def test_next_steps_show_an_entry_for_this_checkout_that_can_be_copied():
    (line,) = [line for line in next_steps().splitlines() if line.strip().startswith("{")]
    entry = json.loads(line)["mcpServers"]["junction"]
    assert entry["command"] == str(ROOT / ".venv" / "bin" / "mcp-junction")
    assert entry["args"] == ["--config", str(EXAMPLES / "demo.json")]
    assert Path(entry["args"][1]).is_file()


def test_next_steps_say_the_same_without_rich():
    assert next_steps("-S") == next_steps()
