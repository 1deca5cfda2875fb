"""Every route, in every role, from every Host and Origin: nothing is reached without right."""

import pytest
from tests.keyring import grant_all
from tests.plugin_rest import CALL, ROLES, SERVERS, registration

from mcp_junction.api.app import make_app
from mcp_junction.api.errors import MCP_TYPES, is_mcp_path
from mcp_junction.api.rights import ANYONE, PUBLIC, RIGHTS, Right, rights_needed
from mcp_junction.identity.keys import KeyRing
from mcp_junction.policy.principal import Role
from mcp_junction.web.application import path_format
from mcp_junction.web.routing import get

HOSTS = (
    "evil.example",
    "127.0.0.1.evil.example",
    "localhost.evil.example:80",
    "",
    "user@localhost",
)
ORIGINS = (
    "http://evil.example",
    "null",
    "file://",
    "https://localhost.evil.example",
    "http://[::2]",
)
HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "t", "version": "1"},
}


def routes(served):
    """Every path and method there is, with what each says about itself."""
    for one in served.context.front.app.operations:
        path = path_format(one).replace("{server_id}", "peer").replace("{skill_id}", "databases")
        yield one.method, path, one.opt


def code_of(answer):
    """The code of an error, or its type under /api/v1/mcp; nothing else tells of it."""
    body = answer.json()
    if is_mcp_path(answer.request.url.path):
        assert body.keys() == {"error"}
        return body["error"]["type"]
    assert body.keys() == {"detail", "error_code", "context"}
    return body["error_code"]


async def ready(gateway):
    served = await gateway()
    await served.client().post(SERVERS, json=registration(auto_connect=False))
    return served


@pytest.mark.req("S-04")
async def test_each_route_is_open_to_those_with_the_right_and_to_nobody_else(gateway):
    served = await ready(gateway)
    seen = 0
    for method, path, opt in routes(served):
        for role in (None, "viewer", "agent", "orchestrator"):
            rights = rights_needed(opt)
            answer = await served.client(role).request(
                method, path, params={"follow": "false"}, json={} if method != "GET" else None
            )
            mine = ANYONE if role is None else ANYONE | RIGHTS[Role(role)]
            if Right.CALL_FOR_AGENT in mine:
                mine |= {Right.CALL}  # for whom, the pipeline checks
            allowed = not mine.isdisjoint(rights)
            refused = 401 if role is None else 403
            is_refused = answer.status_code == refused
            assert is_refused is not bool(allowed), (method, path, role, answer.status_code)
            if not allowed:
                code = "UNAUTHENTICATED" if role is None else "FORBIDDEN"
                assert code_of(answer) == (MCP_TYPES[code] if is_mcp_path(path) else code)
            seen += 1
    assert seen >= 4 * 15
    assert (await served.client().get(f"{SERVERS}/peer")).json()["version"] == 1
    assert (await served.client().get("/api/v1/skills")).json()["total"] == 31


@pytest.mark.req("S-04")
@pytest.mark.bulk
async def test_a_foreign_host_or_origin_reaches_no_route_in_any_role(gateway):
    served = await ready(gateway)
    foreign = [*({"host": host} for host in HOSTS), *({"origin": one} for one in ORIGINS)]
    roles = (None, *ROLES)
    assert len(foreign) >= len(roles)
    for turn, (method, path, _) in enumerate(routes(served)):  # each with all of both
        body = {} if method != "GET" else None
        for number, given in enumerate(foreign):
            role = roles[(turn + number) % len(roles)]
            answer = await served.client(role).request(method, path, headers=given, json=body)
            assert answer.status_code == 403, (method, path, role, given)
            assert code_of(answer) in ("FORBIDDEN", "ForbiddenError")
    assert (await served.client().get(SERVERS)).json()["total"] == 1


@pytest.mark.req("S-04")
async def test_a_new_route_is_closed_by_default(gateway):
    served = await ready(gateway)

    @get("/api/v1/brand-new")
    async def brand_new() -> str:
        return "reached"

    served.context.front.app = app = make_app(
        served.context
    )  # its own, not those of other tests too
    app.register(brand_new)
    for role in ROLES:
        answer = await served.client(role).get("/api/v1/brand-new")
        assert (answer.status_code, answer.json()["error_code"]) == (403, "FORBIDDEN")
    assert (await served.client(None).get("/api/v1/brand-new")).status_code == 401


@pytest.mark.parametrize(
    "given",
    [
        {"authorization": "Bearer"},
        {"authorization": "Bearer jct_x_y"},
        {"authorization": "Basic YTpi"},
        {"authorization": "Bearer " + "a" * 60_000},
        {"authorization": "jct_a_b"},
        {"x-api-key": "anything"},
    ],
    ids=["empty", "unknown", "basic", "long", "bare", "elsewhere"],
)
async def test_what_is_no_key_opens_nothing(gateway, given):
    served = await gateway()
    answer = await served.client(None).get(SERVERS, headers=given)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_two_keys_at_once_open_nothing(gateway):
    served = await gateway()
    keys = [("authorization", f"Bearer {served.keys[role]}") for role in ("admin", "viewer")]
    assert (await served.client(None).get(SERVERS, headers=keys)).status_code == 401


async def test_a_revoked_key_opens_nothing_any_more(gateway):
    served = await gateway()
    assert (await served.client("viewer").get(SERVERS)).status_code == 200
    await served.ring.revoke(served.keys["viewer"].split("_")[1], "test")
    assert (await served.client("viewer").get(SERVERS)).status_code == 401


async def test_only_the_pages_about_the_api_are_public(gateway):
    served = await gateway()
    await served.client().get(SERVERS)  # the routes are loaded
    open_to_anyone = {path for _, path, opt in routes(served) if opt["needs"] in ANYONE}
    assert open_to_anyone == PUBLIC
    assert {Right.READ_DOCS} == ANYONE
    for path in PUBLIC:
        assert (await served.client(None).get(path)).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/api/v1/nowhere", 404, "NOT_FOUND"),
        ("GET", "/api/", 404, "NOT_FOUND"),
        ("GET", f"{SERVERS}/a%2Fconnect", 404, "NOT_FOUND"),
        ("GET", f"{SERVERS}/..%2f..%2fetc", 404, "NOT_FOUND"),
        ("PUT", SERVERS, 405, "METHOD_NOT_ALLOWED"),
        ("DELETE", CALL, 405, "METHOD_NOT_ALLOWED"),
    ],
)
async def test_where_nothing_is_the_answer_is_still_ours(gateway, method, path, status, code):
    served = await gateway()
    answer = await served.client().request(method, path)
    assert (answer.status_code, answer.json()["error_code"]) == (status, code)
    if status == 405:
        assert answer.headers["allow"]


async def test_a_form_of_a_foreign_page_is_not_read(gateway):
    served = await gateway()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        answer = await served.client().post(SERVERS, content="{}", headers={"content-type": kind})
        assert (answer.status_code, answer.json()["error_code"]) == (415, "UNSUPPORTED_MEDIA_TYPE")


async def test_the_local_owner_keeps_the_endpoint_while_there_are_only_administrators_keys(gateway):
    served = await gateway(only=("admin",))
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}
    kinds = {"accept": "application/json, text/event-stream"}
    assert (await served.client(None).post("/mcp", json=hello, headers=kinds)).status_code == 200
    await served.ring.create(Role.AGENT, "bot", "test")
    assert (await served.client(None).post("/mcp", json=hello, headers=kinds)).status_code == 401


async def test_without_a_key_an_endpoint_answers_as_one_that_is_not_there(gateway):
    served = await ready(gateway)
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}
    answers = [
        await served.client(None).post(path, json=hello)
        for path in ("/mcp/peer", "/mcp/nothing", "/mcp/a/b")
    ]
    assert [answer.status_code for answer in answers] == [401] * 3
    assert len({(answer.text, answer.headers["www-authenticate"]) for answer in answers}) == 1
    assert (await served.client().post("/mcp/nothing", json=hello)).status_code == 404


@pytest.mark.parametrize("address", ["/api/v1/mcp/tools", "/mcp"])
async def test_a_key_can_be_used_at_once_with_what_it_was_granted(opener, served, address):
    """Made by a command beside the service, as the guide tells people to do."""
    await served.register("peer")
    store = await opener()
    await grant_all(store, "fresh", "echo")
    _, served.keys["fresh"] = await (await KeyRing.open(store)).create(Role.AGENT, "fresh", "test")
    client = served.client("fresh")
    if address == "/mcp":
        hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}
        accept = {"accept": "application/json, text/event-stream"}
        answer = await client.post(address, json=hello, headers=accept)
        assert answer.status_code == 200, answer.text
    else:
        answer = await client.get(address)
        assert [tool["tool_name"] for tool in answer.json()] == ["echo"], answer.text
