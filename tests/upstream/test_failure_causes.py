"""Why a server failed, in one line: for those who call it and cannot read the log."""

import pytest

from mcp_junction.upstream.http.refusals import describe_body
from mcp_junction.upstream.link import find_cause

PYTHON = """Traceback (most recent call last):
  File "x.py", line 3, in <module>
    raise ssl.SSLCertVerificationError("certificate verify failed")
ssl.SSLCertVerificationError: certificate verify failed: no issuer
"""
NODE = """node:internal/process/promises:288
            triggerUncaughtException(err, true /* fromPromise */);
            ^

Error: self-signed certificate in certificate chain
    at TLSSocket.onConnectSecure (node:_tls_wrap:1659:34)
    at TLSSocket.emit (node:events:517:28) {
  code: 'SELF_SIGNED_CERT_IN_CHAIN'
}

Node.js v18.20.4
"""


@pytest.mark.parametrize(
    ("stderr", "cause"),
    [
        (PYTHON, "ssl.SSLCertVerificationError: certificate verify failed: no issuer"),
        (NODE, "Error: self-signed certificate in certificate chain"),
        ("starting\nAPI_KEY is required\nbye\n", "API_KEY is required"),
        ("one\ntwo\n", "two"),
        ("", ""),
        ("\n \n", ""),
        ("x" * 1000, "x" * 300 + "…"),
    ],
)  # fmt: skip
def test_the_line_that_tells_most_is_found(stderr, cause):
    assert find_cause(stderr) == cause


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("", " with nothing in it"),
        ("<!DOCTYPE html><html><head><title> Sign in </title>", " with a web page ('Sign in') where"
         " MCP should be; check the path of its url"),
        ("\n<html>", " with a web page where MCP should be; check the path of its url"),
        ("upstream\n  connect error", ": upstream connect error"),
        ('{"detail": "Not Found"}', ': {"detail": "Not Found"}'),
    ],
)  # fmt: skip
def test_a_body_that_is_no_answer_is_described(body, words):
    assert describe_body(body) == words
