"""A gateway with credentials in the test's own process, before a FakeIssuer and its server."""

import asyncio
import json
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from msgspec import Raw

from mcp_junction.app import Junction
from mcp_junction.calls.call import Carried, tool_call
from mcp_junction.catalog.endpoints import EVERYTHING
from mcp_junction.config.load import without_file
from mcp_junction.credentials.credentials import Credentials
from mcp_junction.credentials.sign_ins import SignIns
from mcp_junction.credentials.subjects import SHARED
from mcp_junction.oauth.sign_in import read_callback
from mcp_junction.policy.principal import LOCAL_OWNER
from mcp_junction.sessions.stateless import StatelessClient

BOUND = 20.0
CALLBACK = "http://127.0.0.1:1/oauth/callback"


async def until(condition, bound=BOUND):
    """Wait until something is so."""
    async with asyncio.timeout(bound):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def fetch(url, headers=""):
    """GET a url without following redirects: the status, and the headers."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    target = f"{parts.path}?{parts.query}"
    own = f"host: {parts.netloc}\r\nconnection: close\r\n{headers}"
    writer.write(f"GET {target} HTTP/1.1\r\n{own}\r\n".encode())
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    writer.close()
    fields = dict(line.split(": ", 1) for line in head[1:] if line)
    return int(head[0].split()[1]), {name.lower(): value for name, value in fields.items()}


class World:
    """One gateway, and the credentials of its servers."""

    def __init__(self, junction, credentials):
        self.junction = junction
        self.credentials = credentials
        self.session = junction.open_session(lambda _: None)
        self.session.client_info = Raw(b'{"name":"world","version":"1"}')

    def source(self, key="crm", principal=LOCAL_OWNER):
        return self.junction.servers[key].tokens.for_principal(principal)

    async def call(self, name="crm:whoami", *, caller=None, agent=None, bound=BOUND, **arguments):
        """Call a tool; on behalf of an agent, where that is given."""
        caller = caller or self.session
        params = {
            "name": Raw(json.dumps(name).encode()),
            "arguments": Raw(json.dumps(arguments).encode()),
        }
        call = tool_call(caller, self.junction.snapshot, name, params)
        if agent is not None:
            call.carried = Carried(agent_id=agent)
        return await asyncio.wait_for(call.snapshot.handle(call), bound)

    def session_of(self, principal):
        return self.junction.open_session(lambda _: None, None, principal)

    def stateless_of(self, principal):
        spelling = self.junction.spelling(EVERYTHING, principal)
        return StatelessClient(principal, EVERYTHING, spelling, {}, Raw(b"{}"))

    async def logins(self):
        return await SignIns(self.credentials, list).logins()

    async def begin(self, source):
        logins = await self.logins()
        return logins, await logins.begin(source, CALLBACK)

    async def sign_in(self, source=None):
        """Sign in as the issuer's person: a GET of the address is all that it takes."""
        source = source or self.source()
        logins, started = await self.begin(source)
        status, headers = await fetch(started.authorization_url)
        assert status == 302
        answer = read_callback(urlsplit(headers["location"]).query)
        await logins.finish(source, await logins.find_by_state(answer.get("state", "")), answer)

    async def settled(self, key="crm"):
        await asyncio.wait_for(self.junction.servers[key].settled.wait(), BOUND)

    async def connected(self, key="crm"):
        await until(lambda: self.junction.servers[key].link is not None)


@asynccontextmanager
async def running(store, entries, **options):
    """A gateway with these servers; the store may be shared with others."""

    async def tables():
        return store.credentials if store is not None else None

    config = without_file({}, options, entries)
    credentials = Credentials(tables, "mcp-junction", "http://127.0.0.1:1")
    await credentials.load()
    async with Junction(config, environ={}, token_sources=credentials) as junction:
        junction.greet()
        yield World(junction, credentials)
    await credentials.close()


def entry(issuer, **auth):
    return {"url": issuer.url, **({"auth": auth} if auth else {})}


def text_of(outcome):
    return json.loads(bytes(outcome.payload))["content"][0]["text"]


__all__ = ["SHARED", "World", "entry", "fetch", "running", "text_of", "until"]
