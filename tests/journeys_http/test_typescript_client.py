"""The TypeScript SDK's client over HTTP in front, a real server over each transport behind."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from tests.journeys_http.stack import KEYS

pytestmark = pytest.mark.peers

SCRIPT = Path(__file__).with_name("client.mjs")


@pytest.mark.req("J-REMOTE")
def test_it_lists_and_uses_all_three(installed, url):
    sdk = installed.home / "node/node_modules/@modelcontextprotocol/sdk"
    ended = subprocess.run(
        ["node", str(SCRIPT), str(sdk), url, *KEYS],
        env={**os.environ, "PATH": installed.path()},
        capture_output=True,
        encoding="utf-8",
        timeout=40,
    )
    assert ended.returncode == 0, ended.stderr
    seen = json.loads(ended.stdout)
    assert (seen["server"], seen["version"]) == ("mcp-junction", "2025-11-25")
    assert (seen["session"], seen["ended"]) == ("string", True)
    for key in KEYS:
        assert {f"{key}.echo", f"{key}.get-sum"} <= set(seen["tools"])
        assert f"{key}.simple-prompt" in seen["prompts"]
        call = seen["calls"][key]
        assert call["echo"] == f"Echo: {key}"
        assert call["long"].startswith("Long running operation completed.")
        assert call["progress"] == [[1, 3], [2, 3], [3, 3]]
        assert set(call["structured"]) == {"temperature", "conditions", "humidity"}
    document = "demo://resource/static/document/instructions.md"
    assert {document, f"stream+{document}", f"sse+{document}"} <= set(seen["resources"])
    assert len(seen["templates"]) == 3 * 2
