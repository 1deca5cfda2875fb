"""Signing in without a service: by a port of this machine, and for all processes."""

import asyncio
import json
import re
import threading
import urllib.request
from contextlib import asynccontextmanager
from http.cookiejar import CookieJar

import pytest
from tests.credentials.world import World, entry, text_of
from tests.fakes.issuer import FakeIssuer

from mcp_junction.app import Junction
from mcp_junction.cli import sign_in
from mcp_junction.cli.local_credentials import open_local_credentials
from mcp_junction.cli.servers import run
from mcp_junction.config.load import without_file
from mcp_junction.errors import JunctionError
from mcp_junction.protocol.versions import SIGN_IN_NEEDED

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def issuer():
    async with FakeIssuer() as one:
        yield one


@asynccontextmanager
async def local(issuer, folder):
    config = without_file({}, {}, {"crm": entry(issuer)})
    async with (
        open_local_credentials(config, str(folder)) as credentials,
        Junction(config, environ={}, token_sources=credentials) as junction,
    ):
        junction.greet()
        yield World(junction, credentials)


def browse(url):
    jar = urllib.request.HTTPCookieProcessor(CookieJar())
    return urllib.request.build_opener(jar).open(url, timeout=20).read().decode()


async def test_the_link_of_an_error_signs_in_this_process_and_the_others(issuer, tmp_path):
    async with local(issuer, tmp_path) as first, local(issuer, tmp_path) as second:
        await first.settled()
        await second.settled()
        refused = first.junction.servers["crm"].unavailable()
        assert refused.code == SIGN_IN_NEEDED
        link = json.loads(bytes(refused.payload))["data"]["sign_in"]
        assert link.startswith("http://127.0.0.1:")
        wrong = re.sub(r"t=.*", "t=guessed", link)
        page = await asyncio.to_thread(browse, wrong)
        assert "Signed in" not in page
        assert issuer.count("authorize") == 0
        assert "Signed in" in await asyncio.to_thread(browse, link)
        for world in (first, second):
            await world.connected()
            assert text_of(await world.call()) == "alice"
        issuer.revoke_access()
        outcomes = await asyncio.gather(*(world.call() for world in (first, second) * 20))
        assert {text_of(outcome) for outcome in outcomes} == {"alice"}
        assert issuer.count("refresh") == 1
        assert issuer.count("reuse") == 0


async def test_the_command_signs_in_for_a_config_file(issuer, tmp_path, monkeypatch, capsys):
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"crm": entry(issuer)}}))
    folder = tmp_path / "data"

    def open_browser(url):
        threading.Thread(target=browse, args=(url,)).start()
        return True

    monkeypatch.setattr(sign_in.webbrowser, "open", open_browser)
    words = ["login", "crm", "--config", str(config), "--data-dir", str(folder)]
    assert await asyncio.to_thread(run, words) == 0
    assert "crm: signed in" in capsys.readouterr().out
    assert await asyncio.to_thread(run, [*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"status": "not asked for"}
    async with local(issuer, folder) as world:
        await world.connected()
        assert text_of(await world.call()) == "alice"


async def test_the_command_says_when_nobody_has_signed_in(issuer, tmp_path, monkeypatch):
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"crm": entry(issuer)}}))
    monkeypatch.setattr(sign_in, "_PATIENCE", 0.1)
    words = ["login", "crm", "--no-browser", "--config", str(config), "--data-dir", str(tmp_path)]
    with pytest.raises(JunctionError, match="nobody has signed in within ten minutes"):
        await asyncio.to_thread(run, words)


async def test_a_link_with_another_word_is_nobodys_whatever_the_word(issuer, tmp_path):
    async with local(issuer, tmp_path) as world:
        for query in (b"", b"t=", b"t=wrong", b"t=%C3%A9"):
            assert world.credentials._identify({}, {"query_string": query}) is None
