"""Our door: access tokens of an issuer, beside keys, on ``/mcp`` and over REST."""

import asyncio
import json
import sys
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx
import httpx2  # the SDK's
import pytest
from mcp import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from tests.api.mcp_client import ACCEPTED, ERAS, HELLO, Handshake, client_of, frame, post
from tests.credentials.world import fetch
from tests.fakes.issuer import FakeIssuer
from tests.fakes.signed_tokens import forge, signing_key
from tests.http.peer_http import HttpPeer, SsePeer
from tests.plugin_rest import BOUND, _SqliteOpener, serve_api
from tests.registry.toolbox import until

from mcp_junction.config.door import DoorConfig, read_door
from mcp_junction.config.load import without_file
from mcp_junction.store.keys import RevokedSubject

MCP = "/api/v1/mcp"
BACK = "http://127.0.0.1:1/back"
METADATA = "/.well-known/oauth-protected-resource"
GRANTS = {"files.read": ("peer.echo",), "files.all": ("peer.*",), "later": ("late.echo",)}
ROLES = {"junction.admin": "admin", "groups=watchers": "viewer"}


class Doored:
    """A gateway with a door, and the issuer of its tokens."""

    def __init__(self, served: Any, issuer: FakeIssuer) -> None:
        self.served = served
        self.issuer = issuer

    def show(self, name: str, scope: str | None = None, **claims: Any) -> str:
        """Let ``name`` be a client that shows a token of these scopes and claims."""
        audience = claims.pop("aud", f"{self.served.url}/mcp")
        token = self.issuer.token(audience, scope=scope, **{"sub": name, **claims})
        return self.bring(name, token)

    def bring(self, name: str, token: str) -> str:
        self.served.keys[name] = token
        self.served.client(name).headers["authorization"] = f"Bearer {token}"
        return name

    async def tools(self, who: str, era: str = "handshake") -> list[str]:
        client = await client_of(era).open(self.served, who)
        found = (await client.send("tools/list"))["result"]["tools"]
        return [tool["name"] for tool in found]

    async def hello(self, who: str | None, path: str = "/mcp") -> httpx.Response:
        return await post(self.served, who, frame("initialize", HELLO), path)


@pytest.fixture
async def doored(opener, request):
    """A gateway over each kind of store, with one server."""
    async with AsyncExitStack() as stack:
        yield await open_door(stack, opener)


async def open_door(
    stack: AsyncExitStack, opener: Any, required: tuple[str, ...] = (), **more: Any
) -> Doored:
    issuer = FakeIssuer(signing_key(), issuer_path="/tenant")
    await stack.enter_async_context(issuer)
    door = DoorConfig(issuer.issuer, "corp", roles=ROLES, grants=GRANTS, required_scopes=required)
    config = without_file({}, {})._replace(door=door)
    served = await serve_api(stack, opener, config, **{"grants": False, **more})
    await served.register("peer")
    return Doored(served, issuer)


# -- finding the issuer


@pytest.mark.parametrize("path", ["/mcp", "/mcp/peer", "/mcp/nothing"])
async def test_the_metadata_of_an_endpoint_names_the_issuer_whether_there_is_one_or_not(
    doored, path
):
    answer = await doored.served.client(None).get(f"{METADATA}{path}")
    assert answer.json() == {
        "resource": f"{doored.served.url}{path}",
        "authorization_servers": [doored.issuer.issuer],
        "bearer_methods_supported": ["header"],
        "resource_name": "mcp-junction",
        "scopes_supported": ["junction.admin", *GRANTS],
    }
    answer = await doored.hello(None, path)
    assert answer.status_code == 401
    challenge = answer.headers["www-authenticate"]
    assert f'resource_metadata="{doored.served.url}{METADATA}{path}"' in challenge
    assert "error" not in challenge
    assert (await doored.served.client(None).get(f"{METADATA}/api")).status_code == 404


async def test_without_a_door_there_is_no_metadata(gateway):
    served = await gateway()
    assert (await served.client(None).get(f"{METADATA}/mcp")).status_code == 404
    assert "resource_metadata" not in (await post(served, None, {})).headers["www-authenticate"]


async def test_a_door_closes_the_endpoint_to_requests_without_a_key(tmp_path, vault):
    async with AsyncExitStack() as stack:
        opener = _SqliteOpener(stack, tmp_path, vault)
        doored = await open_door(stack, opener, only=("admin",))
        assert not doored.served.ring.has_issued_client_keys
        assert (await doored.hello(None)).status_code == 401


# -- which tokens are good


@pytest.mark.parametrize(
    "kind", ["audience", "expired", "unsigned", "foreign", "hs256", "other key", "no token"]
)
async def test_a_bad_token_is_refused_with_the_reason(gateway_door, kind):
    doored, audience = gateway_door, f"{gateway_door.served.url}/mcp"
    issuer = doored.issuer
    good, past = issuer.token(audience), int(time.time()) - 120
    token, reason = {
        "audience": (issuer.token("https://other.example/mcp"), "audience"),
        "expired": (issuer.token(audience, exp=past), "expired"),
        "unsigned": (forge(good, "none"), "signature"),
        "foreign": (issuer.token(audience, iss="https://evil.example"), "issuer"),
        "hs256": (forge(good, "HS256"), "signature"),
        "other key": (issuer.token(audience, signing_key("RS256", "unknown")), "signature"),
        "no token": ("jct_abc_def", "malformed"),
    }[kind]
    who = doored.bring("mallory", token)
    for answer in (await doored.hello(who), await doored.served.client(who).get(f"{MCP}/tools")):
        assert answer.status_code == 401, answer.text
        challenge = answer.headers["www-authenticate"]
        assert 'error="invalid_token"' in challenge
        assert f'error_description="{reason}:' in challenge
        assert token not in answer.text + challenge


@pytest.fixture
async def gateway_door(tmp_path, vault):
    """The same over SQLite alone, where the kind of store does not matter."""
    async with AsyncExitStack() as stack:
        yield await open_door(stack, _SqliteOpener(stack, tmp_path / "data", vault))


@pytest.mark.parametrize("era", ERAS)
async def test_tokens_and_keys_are_accepted_side_by_side(gateway_door, era):
    doored = gateway_door
    alice = doored.show("alice", "files.read")
    assert await doored.tools(alice, era) == ["peer.echo"]
    assert len(await doored.tools("admin", era)) > 1
    client = await client_of(era).open(doored.served, alice)
    answer = await client.send("tools/call", {"name": "peer.echo", "arguments": {"a": 1}})
    assert "result" in answer, answer
    answer = await doored.served.client(alice).post(
        f"{MCP}/invoke", json={"server_id": "peer", "tool_name": "echo", "params": {}}
    )
    assert answer.json()["success"], answer.text
    await doored.served.audit.flush()
    rows = (await doored.served.client().get(f"{MCP}/audit?agent_id=corp:alice")).json()
    assert {row["agent_id"] for row in rows} == {"corp:alice"}


async def test_a_key_of_the_issuer_that_is_new_is_fetched_and_an_issuer_away_is_said(gateway_door):
    doored = gateway_door
    alice = doored.show("alice")
    assert (await doored.hello(alice)).status_code == 200
    new = signing_key("ES256")
    doored.issuer.keys.insert(0, new)
    doored.served.ring.tokens.keys._tried_at -= 30
    assert (await doored.hello(doored.show("bob"))).status_code == 200
    doored.issuer.is_down = True
    assert (await doored.hello(doored.show("carol"))).status_code == 200, "known keys serve"
    doored.served.ring.tokens.keys._fetched_at -= 24 * 3600
    for answer in (
        await doored.hello(doored.show("dora")),
        await doored.served.client("dora").get(f"{MCP}/tools"),
    ):
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "30"), answer.text
    assert (await doored.hello(alice)).status_code == 200, "what was verified stays so until exp"


# -- what a token gives


async def test_a_token_alone_gives_nothing_and_stored_grants_count_beside_its_own(doored):
    alice = doored.show("alice")
    assert await doored.tools(alice) == []
    body = {"agent_id": "corp:alice", "server_id": "peer", "tool_name": "seen"}
    answer = await doored.served.client().post(f"{MCP}/policies/grant", json=body)
    assert answer.status_code == 201
    assert await doored.tools(alice) == ["peer.seen"]
    assert await doored.tools(doored.show("alice", "files.read")) == ["peer.echo", "peer.seen"]


async def test_of_two_tokens_of_one_agent_neither_has_what_only_the_other_gives(gateway_door):
    doored = gateway_door
    wide, narrow = (
        doored.show("wide", "files.all", sub="a"),
        doored.show("n", "files.read", sub="a"),
    )
    for _ in range(2):
        assert len(await doored.tools(wide)) > 5
        assert await doored.tools(narrow) == ["peer.echo"]
    client = await Handshake.open(doored.served, narrow)
    answer = await client.send("tools/call", {"name": "peer.about", "arguments": {}})
    assert answer["error"]["code"] == -32602, "what it may not call does not exist"
    assert "peer.about" in str(answer)


async def test_what_a_token_gives_is_listed_and_explained(gateway_door):
    doored = gateway_door
    admin, alice = doored.served.client(), doored.show("alice", "files.read")
    asked = {"agent_id": "corp:alice", "server_id": "peer", "tool_name": "echo"}
    told = (await admin.post(f"{MCP}/explain", json=asked)).json()
    assert told["decision"] == "DENY"
    assert "its access token has files.read" in told["would_pass_if"]
    assert await doored.tools(alice) == ["peer.echo"]
    for client in (admin, doored.served.client(alice)):
        told = (await client.post(f"{MCP}/explain", json=asked)).json()
        assert (told["decision"], told["rule"][:11]) == ("ALLOW", "grant:door-"), told
        listed = (await client.get(f"{MCP}/policies/corp:alice")).json()
        assert [(one["tool_name"], one["source"]) for one in listed] == [("echo", "door")]
    every = (await admin.get(f"{MCP}/policies")).json()
    given = {(one["agent_id"], one["tool_name"], one["note"]) for one in every}
    words = "the door gives it to access tokens with files.read"
    assert ("corp:*", "echo", words) in given
    hidden = {**asked, "tool_name": "seen"}
    told = (await doored.served.client(alice).post(f"{MCP}/explain", json=hidden)).json()
    assert "access token" not in str(told), "an agent is not told what others could"


async def test_a_pattern_holds_for_a_server_that_comes_later(gateway_door):
    doored = gateway_door
    alice = doored.show("alice", "later")
    assert await doored.tools(alice) == []
    await doored.served.register("late")
    assert await doored.tools(alice) == ["late.echo"]
    answer = await doored.served.client().delete("/api/v1/aggregator/servers/late")
    assert answer.status_code == 204
    assert await doored.tools(alice) == []


async def test_a_role_is_mapped_and_a_lack_of_it_is_told_by_scope(gateway_door):
    doored = gateway_door
    settings = "/api/v1/settings"
    assert (
        await doored.served.client(doored.show("root", "junction.admin")).get(settings)
    ).is_success
    viewer = doored.served.client(doored.show("v", groups=["watchers"]))
    assert (await viewer.get("/api/v1/aggregator/servers")).is_success
    refused = await viewer.get(settings)
    assert refused.status_code == 403
    challenge = refused.headers["www-authenticate"]
    assert 'error="insufficient_scope", scope="junction.admin"' in challenge
    with_key = await doored.served.client("viewer").get(settings)
    assert (with_key.status_code, "www-authenticate" in with_key.headers) == (403, False)


# -- how it ends


async def test_a_stream_ends_with_the_token_and_the_session_goes_on_with_the_next(gateway_door):
    doored = gateway_door
    tokens = doored.served.ring.tokens
    ahead = [0.0]
    tokens._now = lambda: time.time() + ahead[0]
    alice = doored.show("alice", "files.read")
    client = await Handshake.open(doored.served, alice)
    listening = asyncio.Event()

    async def listen() -> None:
        headers = {"accept": "text/event-stream", "mcp-session-id": client.session}
        async with doored.served.client(alice).stream("GET", "/mcp", headers=headers) as stream:
            async for _ in stream.aiter_bytes():
                listening.set()

    async with asyncio.timeout(BOUND):
        reader = asyncio.create_task(listen())
        await listening.wait()
        ahead[0] = 601
        await reader
        ahead[0] = 700
        doored.show("alice", "files.read", exp=int(time.time()) + 1300)
        found = (await client.send("tools/list"))["result"]["tools"]
    assert [tool["name"] for tool in found] == ["peer.echo"]


async def test_revoked_tokens_are_refused_in_all_processes_and_end_what_is_open(doored, opener):
    alice, bob = doored.show("alice", "files.read"), doored.show("bob", "files.read")
    client = await Handshake.open(doored.served, alice)
    other = await Handshake.open(doored.served, bob)
    revoked = (await opener()).revoked_subjects  # as another process has it
    row = RevokedSubject(doored.issuer.issuer, "alice", time.time() + 1, "test")
    await revoked.revoke(row)
    await until(lambda: "corp:alice" not in _ids(doored))
    assert "corp:bob" in _ids(doored)
    answer = await doored.hello(alice)
    assert answer.status_code == 401
    assert 'error_description="revoked:' in answer.headers["www-authenticate"]
    doored.show("alice", "files.read", iat=int(time.time()) + 30)
    answer = await post(doored.served, "alice", frame("ping"), mcp_session_id=client.session)
    assert answer.status_code == 404, "its session has ended"
    assert (await doored.hello("alice")).status_code == 200, "a token that was issued since is good"
    assert "result" in await other.send("tools/list")


def _ids(doored: Doored) -> set[str]:
    """The agents that have a session."""
    return {one.principal.id for one in doored.served.junction.clients.sessions}


# -- where it does not go


@pytest.mark.req("S-07")
async def test_the_callers_token_never_goes_to_a_server(gateway_door, tmp_path, caplog):
    caplog.set_level("DEBUG")
    doored = gateway_door
    async with HttpPeer() as http, SsePeer() as sse:
        await doored.served.register(
            "web", transport_type="HTTP", connection_config={"url": http.url}
        )
        await doored.served.register(
            "old", transport_type="SSE", connection_config={"url": sse.url}
        )
        code = (
            "import os, runpy, sys\n"
            f"open({str(tmp_path / 'env')!r}, 'w').write(repr(dict(os.environ)) + repr(sys.argv))\n"
            f"sys.argv = [sys.argv[0], '{{}}']; runpy.run_path({_peer()!r}, run_name='__main__')"
        )
        await doored.served.register(
            "own",
            isolation="per-session",
            connection_config={"command": sys.executable, "args": ["-c", code]},
        )
        alice = doored.show("alice", "junction.admin")
        token = doored.served.keys[alice]
        for era in ERAS:
            client = await client_of(era).open(doored.served, alice)
            for server in ("web", "old", "own", "peer"):
                call = {"name": f"{server}.echo", "arguments": {"a": 1}}
                assert "result" in await client.send("tools/call", call)
                seen = await client.send("tools/call", {"name": f"{server}.seen", "arguments": {}})
                assert "echo" in json.dumps(seen)
                assert token not in json.dumps(seen)
        told = b"".join(visit.head + visit.body for visit in (*http.visits, *sse.visits))
        assert b"echo" in told
        assert token.encode() not in told
        assert b"authorization" not in told.lower()
        assert token not in (tmp_path / "env").read_text("utf-8")
        await doored.served.audit.flush()
        rows = (await doored.served.client().get(f"{MCP}/audit?limit=100")).text
        assert "corp:alice" in rows
        assert token not in rows
        assert token not in caplog.text


def _peer() -> str:
    from tests.plugin_http import PEER

    return str(PEER)


# -- a client that knows only the address


class _Memory:
    """Keeps what the SDK has got."""

    tokens = client = None

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens = tokens

    async def get_client_info(self):
        return self.client

    async def set_client_info(self, client):
        self.client = client


@asynccontextmanager
async def sdk_client(address: str, opened: list[str], memory: Any = None):
    """A client of the SDK that knows nothing but the address; the browsers that it opens."""

    async def open_browser(url: str) -> None:
        opened.append(url)

    async def come_back() -> AuthorizationCodeResult:
        _, headers = await fetch(opened[-1])
        given = dict(parse_qsl(urlsplit(headers["location"]).query))
        return AuthorizationCodeResult(code=given["code"], state=given["state"])

    metadata = OAuthClientMetadata(redirect_uris=[BACK], client_name="t")
    auth = OAuthClientProvider(address, metadata, memory or _Memory(), open_browser, come_back)
    async with (
        httpx2.AsyncClient(auth=auth, headers=ACCEPTED, trust_env=False) as http,
        Client(streamable_http_client(address, http_client=http), mode="legacy") as client,
    ):
        yield client


def asked_of(url: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(url).query))


async def test_the_sdk_signs_in_at_our_door_by_itself(gateway_door):
    doored, opened = gateway_door, []
    doored.issuer.gives_scopes = "files.read"
    address = f"{doored.served.url}/mcp/peer"
    async with sdk_client(address, opened) as client:
        found = await client.list_tools()
    assert [tool.name for tool in found.tools] == ["echo"]
    (asked,) = map(asked_of, opened)
    assert asked["resource"] == address
    assert set(asked["scope"].split()) == {"junction.admin", *GRANTS}


@pytest.mark.req("NFR-SEC1")
async def test_a_token_without_a_scope_that_all_need_is_refused_with_403(tmp_path, vault):
    async with AsyncExitStack() as stack:
        opener = _SqliteOpener(stack, tmp_path, vault)
        doored = await open_door(stack, opener, required=("junction.use",))
        alice = doored.show("alice", "files.read other")
        for answer in (
            await doored.hello(alice, "/mcp/peer"),
            await doored.served.client(alice).get(f"{MCP}/tools"),
        ):
            assert answer.status_code == 403, answer.text
            challenge = answer.headers["www-authenticate"]
            # What it has already is named, too: clients ask for what a challenge names.
            assert 'error="insufficient_scope", scope="junction.use files.read"' in challenge
            assert "resource_metadata=" in challenge
        metadata = (await doored.served.client(None).get(f"{METADATA}/mcp")).json()
        assert metadata["scopes_supported"][0] == "junction.use"
        assert await doored.tools(doored.show("bob", "files.read junction.use")) == ["peer.echo"]
        assert len(await doored.tools("admin")) > 1, "keys have no scopes"


async def test_the_sdk_steps_up_when_our_door_wants_more(tmp_path, vault):
    async with AsyncExitStack() as stack:
        opener = _SqliteOpener(stack, tmp_path, vault)
        doored = await open_door(stack, opener, required=("junction.use",))
        address, memory = f"{doored.served.url}/mcp/peer", _Memory()
        memory.client = OAuthClientInformationFull(
            client_id="known", redirect_uris=[BACK], token_endpoint_auth_method="none"
        )
        doored.issuer.clients["known"] = {}
        old = doored.issuer.token(address, scope="files.read")
        memory.tokens = OAuthToken(access_token=old, scope="files.read")
        opened: list[str] = []
        async with sdk_client(address, opened, memory) as client:
            found = await client.list_tools()
        assert [tool.name for tool in found.tools] == ["echo"]
        (asked,) = map(asked_of, opened)
        assert {"junction.use", "files.read"} == set(asked["scope"].split())


# -- its configuration


def test_a_door_is_read_with_its_defaults():
    door, problems = read_door({"issuer": "https://id.example.com/t"})
    assert not problems
    assert door == DoorConfig("https://id.example.com/t", "id.example.com")


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ([], "$.junction.door"),
        ({}, "$.junction.door.issuer"),
        ({"issuer": "http://id.example.com"}, "$.junction.door.issuer"),
        ({"issuer": "https://id.example.com?x=1"}, "$.junction.door.issuer"),
        ({"algorithms": ["HS256"]}, "$.junction.door.algorithms"),
        ({"algorithms": ["none"]}, "$.junction.door.algorithms"),
        ({"roles": {"x": "owner"}}, "$.junction.door.roles.x"),
        ({"roles": []}, "$.junction.door.roles"),
        ({"grants": {"x": "peer.*"}}, "$.junction.door.grants.x"),
        ({"audience": [1]}, "$.junction.door.audience"),
        ({"alias": "a:b"}, "$.junction.door.alias"),
        ({"agent_claim": ""}, "$.junction.door.agent_claim"),
        ({"isuer": "x"}, "$.junction.door.isuer"),
        ({"required_scopes": ["a b"]}, "$.junction.door.required_scopes"),
    ],
)
def test_what_is_wrong_with_a_door_is_said_with_its_place(given, place):
    if isinstance(given, dict) and place != "$.junction.door.issuer":
        given = {"issuer": "https://id.example.com", **given}
    door, problems = read_door(given)
    assert door is None
    assert [problem.path for problem in problems] == [place]


@pytest.mark.parametrize("era", ERAS)
async def test_a_condition_reads_what_the_token_of_the_agent_claims(doored, era):
    body = {
        "agent_id": "corp:alice",
        "server_id": "peer",
        "tool_name": "echo",
        "when": 'agent.claims.team == "blue" && "ops" in agent.claims.groups',
    }
    granted = await doored.served.client().post(f"{MCP}/policies/grant", json=body)
    assert granted.status_code == 201, granted.text
    params = {"name": "peer.echo", "arguments": {"text": "x"}}
    for team, groups, passes in (
        ("blue", ["ops"], True),
        ("red", ["ops"], False),
        ("", None, False),
    ):
        claims = {} if groups is None else {"team": team, "groups": groups}
        who = doored.show("alice", **claims)
        client = await client_of(era).open(doored.served, who)
        answer = await client.send("tools/call", params)
        assert ("result" in answer) is passes, answer
    named = {**body, "params": {"text": "x"}, "tool_name": "echo"}
    named.pop("when")
    doored.show("alice", team="blue", groups=["ops"])
    spoken_for = await doored.served.client("orchestrator").post(f"{MCP}/invoke", json=named)
    assert spoken_for.status_code == 401  # its own claims are not the agent's
    asked = {"agent_id": "corp:alice", "server_id": "peer", "tool_name": "echo", "params": {}}
    told = (await doored.served.client("alice").post(f"{MCP}/explain", json=asked)).json()
    assert told["decision"] == "ALLOW", told
