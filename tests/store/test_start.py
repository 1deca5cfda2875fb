"""`serve` on a store that cannot be used: it says why, shows no secret, and ends; nothing hangs."""

import asyncio
import base64

import httpx
import pytest
from tests.plugin_rest import SERVERS, registration
from tests.store.test_faults import Lock

from mcp_junction.store.store import default_url

pytestmark = pytest.mark.preloaded


async def refusal(serve, *options: str, **more) -> tuple[int, str]:
    program = await serve(None, *options, listens=False, **more)
    return await program.ended(), program.errors


@pytest.mark.req("F-16")
async def test_a_database_that_is_not_there_is_named_without_its_password(serve):
    code, said = await refusal(serve, "--store", "postgresql://ann:hunter2@127.0.0.1:1/x")
    assert code in (1, 2)
    assert "PostgreSQL" in said
    assert "hunter2" not in said
    assert "Traceback" not in said


async def test_a_file_that_is_no_database_is_left_alone(serve, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    file = folder / "junction.db"
    file.write_bytes(b"something else entirely\n" * 100)
    code, said = await refusal(serve)
    assert code == 2
    assert "junction.db cannot be read" in said
    assert file.read_bytes() == b"something else entirely\n" * 100


@pytest.mark.req("F-16")
async def test_a_database_that_is_locked_at_the_start_is_waited_for(serve, tmp_path):
    first = await serve(None)
    await first.stop()
    url = default_url(tmp_path / "data")
    async with Lock(url):
        starting = asyncio.create_task(serve(None))
        await asyncio.sleep(1)
        assert not starting.done()
    program = await asyncio.wait_for(starting, 20)
    assert program.port


async def test_a_store_sealed_with_another_key_is_not_opened(serve, tmp_path):
    admin = {"JUNCTION_ADMIN_KEY": "an-administrators-key-of-length"}
    keys = [{"MCP_CREDENTIAL_KEY": base64.b64encode(bytes([n]) * 32).decode()} for n in (1, 2)]
    program = await serve(None, env=admin | keys[0])
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        answer = await client.post(
            f"http://127.0.0.1:{program.port}{SERVERS}",
            json=registration(auto_connect=False),
            headers={"authorization": f"Bearer {admin['JUNCTION_ADMIN_KEY']}"},
        )
    assert answer.status_code == 201
    await program.stop()
    code, said = await refusal(serve, env=keys[1])
    assert code in (1, 2)
    assert "key" in said
    assert "Traceback" not in said
    again = await serve(None, env=keys[0])
    assert again.port
