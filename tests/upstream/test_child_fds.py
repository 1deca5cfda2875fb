"""What a server's process has of ours: three pipes, no other descriptor, no shell, no variable."""

import asyncio
import errno
import json
import os
import sys

import pytest

from mcp_junction.config.load import Config
from mcp_junction.config.servers import ServerDefinition
from mcp_junction.config.settings import DEFAULTS
from mcp_junction.upstream.child_env import CHAIN_VARIABLE, child_env
from mcp_junction.upstream.headstart import head_start, start_warden
from mcp_junction.upstream.warden import Warden
from mcp_junction.upstream.warden_main import MARK

BOUND = 20.0
LOOK = """
import json, os, sys
fds = []
for fd in range(4096):
    try: os.fstat(fd)
    except OSError: continue
    fds.append(fd)
print(json.dumps({"fds": fds, "env": dict(os.environ), "args": sys.argv[1:], "cwd": os.getcwd()}))
"""
ARGS = ("$HOME", "`id`", "a;b", "*", "$(id)", " two  words ")


def looking(tmp_path, key: str = "s") -> ServerDefinition:
    return ServerDefinition(
        key,
        "stdio",
        command=sys.executable,
        args=("-I", "-S", "-c", LOOK, *ARGS),
        env={"GIVEN": "yes"},
        cwd=str(tmp_path),
    )


async def seen(warden: Warden, definition: ServerDefinition, env: dict[str, str]) -> dict:
    ward, pipes = await warden.start(definition, env)
    await asyncio.wait_for(asyncio.shield(ward.exited), BOUND)
    text = os.read(pipes.stdout, 65536)
    pipes.close()
    return json.loads(text)


@pytest.mark.skipif(sys.platform == "win32", reason="descriptors are a Unix matter")
@pytest.mark.parametrize("early", [False, True], ids=["later", "head start"])
async def test_a_child_sees_its_three_pipes_and_what_it_was_given(tmp_path, early, monkeypatch):
    monkeypatch.setenv("JUNCTION_ADMIN_KEY", "s3cret")
    definition = looking(tmp_path)
    leaky = os.open(__file__, os.O_RDONLY)
    os.set_inheritable(leaky, True)
    env = child_env(definition, os.environ, "identity", inherit=False)
    config = Config("x", (definition,), DEFAULTS, "identity", {})
    warden = Warden(head_start(config, os.environ, start_warden()) if early else None)
    try:
        child = await seen(warden, definition, env)
        again = await seen(warden, looking(tmp_path, "t"), env)
    finally:
        os.close(leaky)
        await warden.close()
    for found in (child, again):
        assert found["fds"] == [0, 1, 2]
        assert found["args"] == list(ARGS), "no shell has read them"
        assert found["cwd"] == str(tmp_path.resolve())
        expected = {**env, CHAIN_VARIABLE: "identity"}
        extra = set(found["env"]) - set(expected)
        assert extra <= {MARK, "LC_CTYPE", "__CF_USER_TEXT_ENCODING"}
        assert "s3cret" not in json.dumps(found["env"])
        assert found["env"]["GIVEN"] == "yes"


async def test_a_start_for_which_no_pipe_is_left_keeps_none(tmp_path, monkeypatch):
    made = []
    pipe = os.pipe

    def exhausted():
        if len(made) == 2:
            raise OSError(errno.EMFILE, "Too many open files")
        made.append(pipe())
        return made[-1]

    monkeypatch.setattr(os, "pipe", exhausted)
    with pytest.raises(OSError, match="Too many open files"):
        await Warden().start(looking(tmp_path), {})
    for fd in (fd for ends in made for fd in ends):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
