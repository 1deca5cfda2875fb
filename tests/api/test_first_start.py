"""The administrator's key: made once, or given; and what it opens."""

import httpx
import pytest
from tests.plugin_rest import SERVERS

pytestmark = pytest.mark.preloaded

GIVEN = "a-key-of-the-operators-own-making"


async def ask(port, key=None, path=SERVERS) -> int:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(trust_env=False, verify=False, timeout=30) as client:
        return (await client.get(f"http://127.0.0.1:{port}{path}", headers=headers)).status_code


def printed(program) -> str | None:
    words = [word for word in program.errors.split() if word.startswith("jct_")]
    return words[0] if words else None


async def test_the_first_start_makes_a_key_and_says_it_once(serve, tmp_path):
    first = await serve({})
    key = printed(first)
    assert key is not None
    assert await ask(first.port, key) == 200
    assert await ask(first.port) == 401
    assert await first.front()  # the owner still needs none
    await first.stop()
    second = await serve({})
    assert printed(second) is None
    assert await ask(second.port, key) == 200


async def test_a_key_that_is_given_is_taken_and_never_said(serve, tmp_path):
    program = await serve({}, env={"JUNCTION_ADMIN_KEY": GIVEN})
    assert printed(program) is None
    assert GIVEN not in program.errors
    assert await ask(program.port, GIVEN) == 200
    assert await ask(program.port, GIVEN + "x") == 401
    assert not (tmp_path / "data" / "admin.key").exists()


async def test_a_key_that_can_be_guessed_is_refused_at_the_start(serve):
    program = await serve({}, env={"JUNCTION_ADMIN_KEY": "admin"}, listens=False)
    assert await program.ended() == 2
    assert "JUNCTION_ADMIN_KEY must be at least" in program.errors


async def test_off_this_machine_a_first_start_needs_a_key_that_is_given(serve):
    program = await serve({}, "--host", "0.0.0.0", listens=False)
    assert await program.ended() == 2
    assert "needs keys" in program.errors
    given = await serve({}, "--host", "0.0.0.0", env={"JUNCTION_ADMIN_KEY": GIVEN})
    assert await ask(given.port, GIVEN) == 200
    assert await ask(given.port, path="/mcp") == 401
