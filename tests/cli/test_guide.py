"""`docs/governance.md` leads to a tight set-up: every command in it is run, in its order."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from tests.cli.serving import BOUND, serve_demo
from tests.plugin_journeys import PROGRAM, own_environment

PAGE = Path(__file__).parents[2] / "docs" / "governance.md"
_BLOCK = re.compile(r"```sh\n(.*?)```\n(?:<!-- shows: (.*?) -->)?", re.DOTALL)
_CUT = "@@ the next block @@"


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    with serve_demo(tmp_path_factory.mktemp("guide")) as served:
        yield served


@pytest.mark.req("J-CLI")
def test_every_command_of_the_guide_does_what_the_guide_says(demo, tmp_path):
    blocks = _BLOCK.findall(PAGE.read_text("utf-8"))
    assert len(blocks) >= 8
    script = f"\necho '{_CUT}'; echo '{_CUT}' >&2\n".join(block for block, _ in blocks)
    ended = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=tmp_path,
        env=own_environment(
            {
                "JUNCTION_URL": demo.url,
                "JUNCTION_DATA_DIR": str(demo.folder),
                "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}",
                "COLUMNS": "200",
            }
        ),
        capture_output=True,
        encoding="utf-8",
        timeout=4 * BOUND,
    )
    said = list(zip(ended.stdout.split(_CUT), ended.stderr.split(_CUT), strict=True))
    assert ended.returncode == 0, (len(said), said[-1])
    assert (tmp_path / "grant.json").stat().st_mode & 0o077 == 0, "it holds a token"
    for (block, shows), (out, err) in zip(blocks, said, strict=True):
        assert shows, f"the page says what this shows:\n{block}"
        assert shows in out + err, (block, out, err)
        assert "Traceback" not in err
