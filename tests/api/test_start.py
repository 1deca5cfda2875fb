"""The routes are loaded behind the listener, and the loop goes on meanwhile."""

import json
import subprocess
import sys
from pathlib import Path

from tests.pulse import BLOCKED

ROOT = Path(__file__).parents[2]


def test_the_first_request_waits_for_the_routes_and_the_loop_for_nobody(tmp_path):
    """In a program of its own: in this one they may have been loaded by another test."""
    command = [sys.executable, "-m", "tests.api.starting", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["statuses"] == [200, 201, 200, 200, 404]
    assert seen["loaded"] is False, "or there was nothing to wait for"
    assert seen["beats"] > 10
    assert seen["worst"] < BLOCKED
