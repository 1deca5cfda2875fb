"""What the API says of itself is true: requests made from it, good and bad, in every role."""

import asyncio
import json
import re
from functools import cache
from importlib.util import find_spec
from itertools import count
from typing import Any

import pytest
import requests
import schemathesis
from _pytest.assertion.rewrite import AssertionRewritingHook
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)
from tests.plugin_rest import ROLES, SERVERS, registration

from mcp_junction.api.errors import MCP_TYPES, STATUS, is_mcp_path

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
EXAMPLES = {"admin": 20, "orchestrator": 6, "agent": 4, "viewer": 4}
SOME = {"admin": 6, "orchestrator": 2, "agent": 2, "viewer": 1}
"""Requests to each operation: in the long form of the test, and in the short one."""
_turn = count()


def tame(case) -> None:
    """Half of the requests are for a server that is there; none leads to a connection."""
    path, method = case.operation.path, case.operation.method.lower()
    known = "spare" if method in ("patch", "delete") or "disconnect" in path else "peer"
    if "server_id" in (case.path_parameters or {}) and next(_turn) % 2:
        case.path_parameters["server_id"] = known
    if path == "/api/v1/events":
        case.query = {**(case.query or {}), "follow": "false"}
    if path == SERVERS and isinstance(case.body, dict):
        case.body["auto_connect"] = False


@cache
def cases(document: bytes, mode: GenerationMode) -> list[Any]:
    """What makes requests to each operation. Most of the time goes into making that."""
    schema = schemathesis.openapi.from_dict(json.loads(document))
    operations = [found.ok() for found in schema.get_all_operations()]
    return [operation.as_strategy(generation_mode=mode) for operation in operations]


def attack(document: bytes, url: str, key: str, mode: GenerationMode, examples: int) -> int:
    """Send generated requests to every operation; how many were sent."""
    sent = 0
    with requests.Session() as session:
        session.trust_env = False
        for made in cases(document, mode):

            @settings(
                max_examples=examples,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=made)
            def send(case):
                nonlocal sent
                tame(case)
                given_key = {"authorization": f"Bearer {key}"}
                answer = case.call(url, session=session, headers=given_key, timeout=20)
                sent += 1
                case.validate_response(answer, checks=CHECKS)

            send()
    return sent


@pytest.mark.bulk
# The service runs on another thread of this process, and may use `random` while a request is made.
@pytest.mark.filterwarnings("ignore:Do not use the .random. module inside strategies")
@pytest.mark.req("S-01")
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize(
    "examples",
    [
        pytest.param(SOME, id="some"),
        pytest.param(EXAMPLES, id="many", marks=pytest.mark.soak),
    ],
)
async def test_generated_requests_get_documented_answers_and_no_failure(
    gateway, remote, role, mode, examples
):
    served = await gateway(stdio_allow="/nothing/is/allowed")
    document = (await served.client(None).get("/api/v1/openapi.json")).content
    far = {"transport_type": "HTTP", "connection_config": await remote("http")}
    await served.register("peer", **far)
    await served.client().post(SERVERS, json=registration("spare", **far, auto_connect=False))
    sent = await asyncio.to_thread(
        attack, document, served.url, served.keys[role], mode, examples[role]
    )
    assert sent >= 10


def test_no_thread_of_requests_has_pytest_parse_what_it_loads():
    """Two threads that parse at one time fail in Python 3.11 (`plugin_process.py`)."""
    late = find_spec("schemathesis.specs.openapi.schemas")
    assert not isinstance(late.loader, AssertionRewritingHook)


async def test_the_description_is_complete(gateway):
    served = await gateway()
    document = (await served.client(None).get("/api/v1/openapi.json")).json()
    assert document["openapi"].startswith("3.")
    told = set()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation["summary"]
            assert operation["x-roles"]
            bad = "400" if is_mcp_path(path) else "422"
            assert {"401", "403", bad} <= operation["responses"].keys()
            assert ("requestBody" in operation) is (method in ("post", "patch", "put"))
            for answer in operation["responses"].values():
                words = answer.get("description") or ""
                told |= set(re.findall(r"[A-Z_]{6,}|[A-Za-z]+Error", words))
    outside = {"METHOD_NOT_ALLOWED", "INTERNAL_ERROR"}  # of no operation in particular
    assert {code for code in STATUS if not {code, MCP_TYPES[code]} & told} == outside


async def test_the_page_needs_nothing_from_elsewhere(gateway):
    served = await gateway()
    answer = await served.client(None).get("/api/v1/docs")
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "<script" not in answer.text
    assert not re.findall(r"(?:src|href)=\"https?:", answer.text)
    for path in ("/api/v1/tools/call", "/api/v1/aggregator/servers/{server_id}/connect"):
        assert path in answer.text
