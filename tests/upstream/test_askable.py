"""Which clients can be asked what: a shared link was told more than each of them can."""

import pytest
from msgspec import Raw

from mcp_junction.protocol.versions import INVALID_PARAMS, METHOD_NOT_FOUND
from mcp_junction.upstream.handshake import askable_methods, question_refusal

FORM, URL = b'{"message":"name?"}', b'{"mode":"url","url":"https://x/","message":"sign"}'


def code(capabilities: dict[str, bytes], method: str, params: bytes) -> int:
    can = askable_methods({name: Raw(said) for name, said in capabilities.items()})
    refused = question_refusal(method, Raw(params), can)
    return 0 if refused is None else refused.code


@pytest.mark.parametrize(
    ("said", "by_form", "by_url"),
    [
        (b"{}", 0, INVALID_PARAMS),
        (b'{"form":{}}', 0, INVALID_PARAMS),
        (b'{"applyDefaults":true}', 0, INVALID_PARAMS),
        (b'{"url":{}}', INVALID_PARAMS, 0),
        (b'{"form":{},"url":{}}', 0, 0),
        (b"true", 0, INVALID_PARAMS),
    ],
)
def test_a_client_is_asked_only_in_a_mode_that_it_has(said, by_form, by_url):
    capabilities = {"elicitation": said}
    assert code(capabilities, "elicitation/create", FORM) == by_form
    assert code(capabilities, "elicitation/create", b'{"mode":"form"}') == by_form
    assert code(capabilities, "elicitation/create", URL) == by_url


def test_a_mode_that_nobody_knows_is_refused():
    capabilities = {"elicitation": b'{"form":{},"url":{},"voice":{}}'}
    assert code(capabilities, "elicitation/create", b'{"mode":"voice"}') == INVALID_PARAMS


@pytest.mark.parametrize("params", [b"", b"null", b"[]", b'{"mode":7}'])
def test_what_says_no_mode_is_a_form(params):
    assert code({"elicitation": b"{}"}, "elicitation/create", params) == 0
    assert code({"elicitation": b'{"url":{}}'}, "elicitation/create", params) == INVALID_PARAMS


@pytest.mark.parametrize("method", ["sampling/createMessage", "roots/list", "elicitation/create"])
def test_what_a_client_has_not_declared_it_is_not_asked(method):
    others = {"sampling": b"{}", "roots": b"{}", "elicitation": b"{}"}
    del others[{"s": "sampling", "r": "roots", "e": "elicitation"}[method[0]]]
    assert code(others, method, b"{}") == METHOD_NOT_FOUND
    assert code({}, method, b"{}") == METHOD_NOT_FOUND


@pytest.mark.parametrize("method", ["form", "url", "tools/call", ""])
def test_what_is_no_question_is_refused(method):
    everything = {"sampling": b"{}", "roots": b"{}", "elicitation": b'{"form":{},"url":{}}'}
    assert code(everything, method, b"{}") == METHOD_NOT_FOUND
