"""WebApp: requests reach their operations, with parameters that are read and checked."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated, Literal

import msgspec
import pytest

from mcp_junction.errors import RequestError
from mcp_junction.web.application import WebApp, describe_operations, path_format
from mcp_junction.web.messages import Request, Response, Stream
from mcp_junction.web.routing import (
    HeaderParameter,
    PathParameter,
    QueryParameter,
    ResponseSpec,
    Router,
    delete,
    get,
    post,
)


class Thing(msgspec.Struct):
    id: str
    size: int = 0


Ref = Annotated[str, PathParameter(max_length=5)]
Limit = Annotated[int, QueryParameter(ge=1, le=10, description="So many.")]
Kind = Annotated[Literal["red", "blue"] | None, QueryParameter(name="colour")]
Tag = Annotated[str | None, HeaderParameter(name="If-Match")]


@get()
async def list_things(limit: Limit = 5, kind: Kind = None, full: bool = False) -> list[Thing]:
    return [Thing(str(kind), limit), Thing(str(full))]


@get("/{ref:str}")
async def show_thing(context: dict, ref: Ref, tag: Tag = None) -> Response[Thing]:
    return Response(Thing(ref, context["size"]), headers={"etag": tag or "none"})


@post("/{ref:str}", responses={422: ResponseSpec(Thing, "wrong")}, summary="Add")
async def add_thing(request: Request, ref: Ref) -> Thing:
    return Thing(ref, len(await request.body()))


@delete("/{ref:str}")
async def drop_thing(ref: Ref) -> None:
    if ref == "bad":
        raise ValueError("why")


@get("/special")
async def special() -> str:
    return "fixed"


@get("/{ref:str}/files/{rest:path}", include_in_schema=False)
async def show_file(ref: Ref, rest: Annotated[str, PathParameter()]) -> str:
    return f"{ref}{rest}"


@get("/odd", include_in_schema=False)
async def odd() -> object:
    return object()  # which is no JSON


STREAMS: list[str] = []


async def parts() -> AsyncIterator[bytes]:
    try:
        yield b"one"
        yield b"two"
        await asyncio.Event().wait()
    finally:
        STREAMS.append("closed")


@get("/stream")
async def stream() -> Stream:
    return Stream(parts(), media_type="text/plain", headers={"x-a": "b"})


THINGS = Router(
    "/things",
    [list_things, show_thing, add_thing, drop_thing, special, show_file, odd, stream],
    tags=["things"],
)


def refuse(scope, operation):
    if b"closed" in scope["query_string"]:
        raise RequestError("FORBIDDEN", "no")


def respond(scope, error, operation):
    code = error.code if isinstance(error, RequestError) else "BUG"
    headers = error.headers if isinstance(error, RequestError) else {}
    told = {"code": code, "words": str(error)}
    return Response(msgspec.json.encode(told), status_code=499, headers=headers)


APP = WebApp([THINGS], context={"size": 7}, guard=refuse, respond=respond)


async def ask(method, path, body=b"", headers=(), leave=None):
    sent = []
    messages = [
        {"type": "http.request", "body": body[:2], "more_body": True},
        {"type": "http.request", "body": body[2:], "more_body": False},
    ]

    async def receive():
        if messages:
            return messages.pop(0)
        await leave.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)
        if leave is not None and message.get("body") == b"two":
            leave.set()

    path, _, query = path.partition("?")
    scope = {
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in headers],
    }
    async with asyncio.timeout(10):
        await APP(scope, receive, send)
    start, *rest = sent
    return start["status"], dict(start["headers"]), b"".join(one["body"] for one in rest)


async def told(*asked, **more):
    status, _, body = await ask(*asked, **more)
    return status, json.loads(body) if body else None


async def test_parameters_come_from_path_query_and_headers():
    assert await told("GET", "/things?limit=3&colour=red&full=TRUE&other=1") == (
        200,
        [{"id": "red", "size": 3}, {"id": "True", "size": 0}],
    )
    assert (await told("GET", "/things/"))[1][0] == {"id": "None", "size": 5}
    status, headers, body = await ask("GET", "/things/ab", headers=[("if-match", '"1"')])
    assert (status, json.loads(body)) == (200, {"id": "ab", "size": 7})
    assert headers[b"etag"] == b'"1"'
    assert headers[b"content-type"] == b"application/json"
    assert headers[b"content-length"] == b"%d" % len(body)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("limit=0", "limit: must be at least 1"),
        ("limit=11", "limit: must be at most 10"),
        ("limit=x", "limit: must be a whole number"),
        ("limit=" + "9" * 5000, "limit: must be a whole number"),
        ("limit=%D9%A3", "limit: must be a whole number"),
        ("full=maybe", "full: must be true or false"),
        ("colour=green", "colour: must be one of red, blue"),
        ("&".join(f"a{n}=1" for n in range(200)), "the query has too many parameters"),
    ],
)
async def test_a_parameter_that_is_not_right_is_named(query, words):
    assert await told("GET", f"/things?{query}") == (
        499,
        {"code": "VALIDATION_ERROR", "words": words},
    )


async def test_a_path_leads_to_what_fits_it_best():
    assert await told("GET", "/things/special") == (200, "fixed")
    assert await told("POST", "/things/abc", b"12345") == (201, {"id": "abc", "size": 5})
    assert (await told("POST", "/things/abcdef"))[1]["code"] == "VALIDATION_ERROR"
    assert await told("GET", "/things/a/files/x/y z") == (200, "a/x/y z")
    assert await told("GET", "/things/odd/files/x") == (200, "odd/x")
    assert await ask("DELETE", "/things/ab") == (204, {}, b"")


@pytest.mark.parametrize("path", ["/", "", "/thing", "/things/a/b", "//things", "/things//files/x"])
async def test_elsewhere_there_is_nothing(path):
    assert (await told("GET", path))[1]["code"] == "NOT_FOUND"


async def test_another_method_is_told_which_there_are():
    status, headers, body = await ask("PATCH", "/things/ab")
    assert (status, headers[b"allow"]) == (499, b"DELETE, GET, POST")
    assert json.loads(body)["code"] == "METHOD_NOT_ALLOWED"


async def test_the_guard_comes_before_the_parameters():
    assert (await told("GET", "/things?limit=x&closed"))[1]["code"] == "FORBIDDEN"


@pytest.mark.parametrize(("method", "path"), [("DELETE", "/things/bad"), ("GET", "/things/odd")])
async def test_what_fails_in_a_handler_or_after_it_is_answered(method, path):
    assert (await told(method, path))[1]["code"] == "BUG"


async def test_a_stream_ends_when_the_client_leaves():
    STREAMS.clear()
    status, headers, body = await ask("GET", "/things/stream", leave=asyncio.Event())
    assert (status, body, headers[b"x-a"]) == (200, b"onetwo", b"b")
    assert STREAMS == ["closed"]


def test_two_operations_cannot_have_one_place():
    with pytest.raises(ValueError, match="two operations at GET /things"):
        APP.register(list_things.under("/things", ()))


async def test_the_app_reads_the_bodies_of_operations_that_it_has_a_reader_for(monkeypatch):
    @post("/taken")
    async def take(body: dict) -> dict:
        return body

    @post("/ignored")
    async def ignore() -> str:
        return "not given"

    @post("/raw")
    async def read_raw(request: Request) -> str:
        return (await request.body()).decode()

    async def read(request):
        return msgspec.json.decode(await request.body())

    failed = []

    def note(scope, error, operation):
        failed.append(operation and operation.path)
        return respond(scope, error, operation)

    def reader(operation):
        return None if operation.path == "/raw" else read

    operations = [take, ignore, read_raw]
    app = WebApp(operations, context=None, guard=refuse, respond=note, body_reader=reader)
    monkeypatch.setitem(globals(), "APP", app)
    assert await told("POST", "/taken", b'{"a":1}') == (201, {"a": 1})
    assert await told("POST", "/ignored", b"{}") == (201, "not given")
    assert await told("POST", "/raw", b"{x") == (201, "{x")
    for path in ("/taken", "/ignored", "/nowhere"):
        assert (await told("POST", path, b"{x"))[0] == 499
    assert failed == ["/taken", "/ignored", None]
    assert [one.takes_body for one in operations] == [True, False, False]


def test_a_parameter_that_cannot_be_read_is_found_when_the_app_is_made():
    @get("/x")
    async def wrong(many: list[str]) -> None: ...

    with pytest.raises(TypeError, match="many"):
        WebApp([wrong], context=None, guard=refuse, respond=respond)


def test_openapi_says_what_is_read_and_answered():
    paths, schemas = describe_operations(THINGS.operations())
    assert paths["/things"]["get"]["parameters"][:2] == [
        {
            "name": "limit",
            "in": "query",
            "required": False,
            "description": "So many.",
            "schema": {"type": "integer", "minimum": 1, "maximum": 10, "default": 5},
        },
        {
            "name": "colour",
            "in": "query",
            "required": False,
            "schema": {"type": "string", "enum": ["red", "blue"]},
        },
    ]
    added = paths["/things/{ref}"]["post"]
    assert added["tags"] == ["things"]
    assert added["parameters"][0]["required"] is True
    shape = {"application/json": {"schema": {"$ref": "#/components/schemas/Thing"}}}
    assert {status: one.get("content") for status, one in added["responses"].items()} == {
        "201": shape,
        "422": shape,
    }
    assert "content" not in paths["/things/{ref}"]["delete"]["responses"]["204"]
    assert set(schemas) == {"Thing"}
    assert "/things/{ref}/files/{rest}" not in paths
    assert path_format(show_file) == "/{ref}/files/{rest}"
