"""`mcp-junction servers login`, `logout` and `auth`, against a running service."""

import argparse
import asyncio
import re
import threading
import urllib.request
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.credentials.test_signing_in import issuer, register

from mcp_junction.cli import sign_in
from mcp_junction.cli.servers import run

pytestmark = pytest.mark.timeout(60)
_ = issuer  # a fixture


def command(served, *words):
    """Run a command beside the loop, as another process does."""
    options = ("--url", served.url, "--key", served.keys["admin"])
    return asyncio.to_thread(run, [*words, *options])


def browse(url):
    """Open a url as a browser does, in the background."""
    threading.Thread(target=lambda: urllib.request.urlopen(url, timeout=20).read()).start()
    return True


async def test_a_browser_here_signs_in_by_a_listener_on_loopback(
    gateway, issuer, monkeypatch, capsys
):
    served = await gateway()
    await register(served, issuer)
    monkeypatch.setattr(sign_in.webbrowser, "open", browse)
    assert await command(served, "list") == 0
    assert "SIGN IN" in capsys.readouterr().out
    assert await command(served, "login", "crm") == 0
    assert "crm: signed in" in capsys.readouterr().out
    await served.until("crm", "CONNECTED")
    assert await command(served, "auth", "crm") == 0
    assert "signed_in" in capsys.readouterr().out
    assert await command(served, "logout", "crm") == 0
    assert await command(served, "list") == 0
    assert "SIGN IN" in capsys.readouterr().out


async def test_without_a_browser_the_address_is_pasted(gateway, issuer, monkeypatch, capsys):
    served = await gateway()
    await register(served, issuer)

    class Person:
        """Opens the printed link elsewhere, where its end leads nowhere, and pastes that."""

        def readline(self):
            link = re.search(r"http://\S+/authorize\?\S+", capsys.readouterr().err)[0]
            opener = urllib.request.build_opener(Stay)
            return opener.open(link, timeout=20).headers["location"] + "\n"

    class Stay(urllib.request.HTTPRedirectHandler):
        def http_error_302(self, request, answer, *_):
            return answer

    monkeypatch.setattr("sys.stdin", Person())
    assert await command(served, "login", "crm", "--no-browser") == 0
    await served.until("crm", "CONNECTED")


def test_the_agent_to_sign_out_is_named_whatever_its_id_holds():
    paths = []

    class Remote:
        delete = staticmethod(paths.append)

    sign_in.log_out(argparse.Namespace(name="crm", agent="a&b c", json=False), Remote())
    assert urlsplit(paths[0]).path.endswith("/crm/auth")
    assert parse_qs(urlsplit(paths[0]).query) == {"agent": ["a&b c"]}
