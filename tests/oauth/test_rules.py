"""The rules of OAuth, as tables: what is asked where, what is believed, and what is chosen."""

import base64
import json

import pytest

from mcp_junction.errors import OAuthError
from mcp_junction.oauth.discovery import (
    BearerChallenge,
    IssuerMetadata,
    ResourceMetadata,
    check_code_flow,
    choose_issuer,
    issuer_metadata_urls,
    read_challenge,
    read_issuer_metadata,
    read_resource_metadata,
    resource_metadata_urls,
)
from mcp_junction.oauth.registration import (
    BASIC,
    JWT,
    NONE,
    POST,
    ClientKind,
    OAuthClient,
    authenticate,
    choose_auth_method,
    choose_kind,
    client_metadata,
    read_registered,
    registered_client,
)
from mcp_junction.oauth.sign_in import (
    SignInRequest,
    authorization_url,
    choose_scopes,
    make_pkce,
    read_callback,
    step_up,
    take_code,
)
from mcp_junction.oauth.tokens import (
    is_client_unknown,
    is_grant_over,
    read_token_answer,
    renewal_time,
)

WELL = "https://x.example/.well-known"
SERVER = "https://x.example/a/mcp"


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (b"Bearer", BearerChallenge()),
        (b'bearer realm="x"', BearerChallenge()),
        (
            b'Bearer resource_metadata="https://x/y, z", scope="a b"',
            BearerChallenge("https://x/y, z", "a b"),
        ),
        (b'Basic realm="a", Bearer error="insufficient_scope", scope=files', None),
        (b'Negotiate dG9rZW4=, Bearer scope="q"', BearerChallenge(scope="q")),
        (b'Bearer realm="1", Bearer resource_metadata="u"', BearerChallenge("u")),
        (b'Bearer scope="say \\"hi\\""', BearerChallenge(scope='say "hi"')),
        (b'Bearer scope = "spaced"', BearerChallenge(scope="spaced")),
    ],
)
def test_a_challenge_is_found_among_others(header, found):
    read = read_challenge(header)
    if found is None:
        assert read is not None
        assert read.wants_scope
        assert read.scopes == ("files",)
    else:
        assert read == found


@pytest.mark.parametrize("header", [None, b"", b"Basic x", b"DPoP algs=x", b"\xff\xff", b"=,=,"])
def test_what_asks_for_no_bearer_token_is_no_challenge(header):
    assert read_challenge(header) is None


@pytest.mark.parametrize(
    ("url", "named", "expected"),
    [
        (SERVER, "https://x.example/meta", ["https://x.example/meta"]),
        (
            SERVER,
            "",
            [f"{WELL}/oauth-protected-resource/a/mcp", f"{WELL}/oauth-protected-resource"],
        ),
        ("https://x.example/", "", [f"{WELL}/oauth-protected-resource"]),
        ("https://x.example", "", [f"{WELL}/oauth-protected-resource"]),
    ],
)
def test_the_metadata_of_a_server_is_looked_for_in_order(url, named, expected):
    assert resource_metadata_urls(url, named) == expected


@pytest.mark.parametrize(
    ("issuer", "expected"),
    [
        (
            "https://x.example",
            [f"{WELL}/oauth-authorization-server", f"{WELL}/openid-configuration"],
        ),
        (
            "https://x.example/",
            [f"{WELL}/oauth-authorization-server", f"{WELL}/openid-configuration"],
        ),
        (
            "https://x.example/t",
            [
                f"{WELL}/oauth-authorization-server/t",
                f"{WELL}/openid-configuration/t",
                "https://x.example/t/.well-known/openid-configuration",
            ],
        ),
    ],
)
def test_the_metadata_of_an_issuer_is_never_looked_for_at_the_root_of_another(issuer, expected):
    assert issuer_metadata_urls(issuer) == expected


def resource(**fields):
    return json.dumps({"resource": SERVER, "authorization_servers": ["https://as"], **fields})


@pytest.mark.parametrize(
    "named",
    [SERVER, f"{SERVER}/", "https://x.example/a", "https://x.example", "https://X.example:443/a/"],
)
def test_metadata_of_the_server_or_of_a_parent_is_believed_as_it_is_written(named):
    found = read_resource_metadata(resource(resource=named).encode(), SERVER, "x")
    assert found == ResourceMetadata(named, ("https://as",))


@pytest.mark.parametrize(
    "named",
    [
        "https://y.example/a/mcp", "http://x.example/a/mcp", "https://x.example:444/a/mcp",
        "https://x.example/a/mc", "https://x.example/a/mcp/more", "https://x.example/b", "", None,
        "https://x.example/a/mcp#part", "https://x.example@evil.example/", 7,
    ],
)  # fmt: skip
def test_metadata_of_another_resource_ends_the_sign_in(named):
    with pytest.raises(OAuthError, match="another resource"):
        read_resource_metadata(resource(resource=named).encode(), SERVER, "x")


@pytest.mark.parametrize("body", [b"", b"[]", b"<html>", b"null", b"[" * 5000, b"\xff"])
def test_metadata_that_is_no_object_is_refused_by_name(body):
    with pytest.raises(OAuthError, match="protected-resource metadata at x: its answer is not"):
        read_resource_metadata(body, SERVER, "x")
    with pytest.raises(OAuthError, match="authorization-server metadata at x: its answer is not"):
        read_issuer_metadata(body, "https://as", "x")


def issuer(**fields):
    given = {
        "issuer": "https://as",
        "token_endpoint": "https://as/token",
        "authorization_endpoint": "https://as/authorize",
        "code_challenge_methods_supported": ["S256"],
        **fields,
    }
    return json.dumps({name: value for name, value in given.items() if value is not None}).encode()


@pytest.mark.parametrize("named", ["https://as/", "https://AS", "http://as", "https://evil", None])
def test_an_issuer_must_be_named_to_the_character(named):
    with pytest.raises(OAuthError, match="another issuer"):
        read_issuer_metadata(issuer(issuer=named), "https://as", "as")


@pytest.mark.parametrize(
    "name", ["token_endpoint", "authorization_endpoint", "registration_endpoint"]
)
@pytest.mark.parametrize("url", ["javascript:alert(1)", "file:///etc/passwd", "https://u:p@as/t"])
def test_an_endpoint_must_be_an_address_of_the_web(name, url):
    with pytest.raises(OAuthError, match=name):
        read_issuer_metadata(issuer(**{name: url}), "https://as", "as")


@pytest.mark.parametrize("methods", [None, [], ["plain"], "S256"])
def test_a_sign_in_without_pkce_is_refused(methods):
    found = read_issuer_metadata(
        issuer(code_challenge_methods_supported=methods), "https://as", "as"
    )
    with pytest.raises(OAuthError, match="PKCE"):
        check_code_flow(found, "as")


def test_the_issuer_is_the_operators_or_the_first_named_or_the_origin():
    named = ResourceMetadata(SERVER, ("https://one", "https://two"))
    assert choose_issuer(named, "https://two", SERVER) == "https://two"
    assert choose_issuer(named, "", SERVER) == "https://one"
    assert choose_issuer(None, "", SERVER) == "https://x.example"
    with pytest.raises(OAuthError, match="names no authorization server"):
        choose_issuer(ResourceMetadata(SERVER, ()), "", SERVER)


OURS = "https://me.example/oauth/client.json"


@pytest.mark.parametrize(
    ("fields", "given", "kind"),
    [
        ({}, {"client_id": "me"}, ClientKind.REGISTERED),
        ({"takes_metadata_urls": True}, {"metadata_url": OURS}, ClientKind.METADATA),
        (
            {"takes_metadata_urls": True, "registration_endpoint": "r"},
            {"metadata_url": "http://127.0.0.1/oauth/client.json"},
            ClientKind.DYNAMIC,
        ),
        (
            {"takes_metadata_urls": True, "registration_endpoint": "r", "auth_methods": (BASIC,)},
            {"metadata_url": OURS},
            ClientKind.DYNAMIC,
        ),
        ({"registration_endpoint": "r"}, {"metadata_url": OURS}, ClientKind.DYNAMIC),
    ],
)
def test_we_come_as_the_client_that_the_issuer_can_know(fields, given, kind):
    assert choose_kind(IssuerMetadata("i", "t", **fields), "as", **given) is kind


def test_the_operator_is_asked_where_nothing_else_is_left():
    with pytest.raises(OAuthError, match="client_id"):
        choose_kind(IssuerMetadata("i", "t"), "as", metadata_url=OURS)


def test_a_registration_says_what_we_will_do():
    native = client_metadata("j", ["http://127.0.0.1:1/cb"])
    web = client_metadata("j", ["https://me.example/cb"], BASIC)
    assert native["application_type"] == "native"
    assert web["application_type"] == "web"
    assert "refresh_token" in native["grant_types"]
    assert web["token_endpoint_auth_method"] == BASIC


@pytest.mark.parametrize(
    ("answer", "asked", "client"),
    [
        ({"client_id": "c"}, NONE, OAuthClient("c")),
        ({"client_id": "c", "client_secret": "s"}, BASIC, OAuthClient("c", BASIC, "s")),
        (
            {"client_id": "c", "client_secret": "s", "token_endpoint_auth_method": POST},
            BASIC,
            OAuthClient("c", POST, "s"),
        ),
        (
            {"client_id": "c", "client_secret": "s", "client_secret_expires_at": 9},
            POST,
            OAuthClient("c", POST, "s", 9.0),
        ),
        (
            {"client_id": "c", "client_secret": "s", "client_secret_expires_at": 10**400},
            POST,
            OAuthClient("c", POST, "s"),
        ),
    ],
)
def test_a_registered_client_authenticates_as_it_was_assigned(answer, asked, client):
    assert read_registered(201, json.dumps(answer).encode(), asked, "as") == client


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (403, {"error": "access_denied"}),
        (404, None),
        (201, {}),
        (201, {"client_id": 7}),
        (201, {"client_id": "c", "token_endpoint_auth_method": "tls_client_auth"}),
        (201, {"client_id": "c", "token_endpoint_auth_method": BASIC}),
    ],
)
def test_a_registration_of_no_use_ends_before_the_browser(status, answer):
    with pytest.raises(OAuthError, match="client registration"):
        read_registered(status, json.dumps(answer).encode(), NONE, "as")


def test_what_is_no_code_of_an_error_is_not_repeated():
    body = json.dumps({"error": "<script>s3cret</script>"}).encode()
    with pytest.raises(OAuthError) as raised:
        read_registered(400, body, NONE, "as")
    assert raised.value.code == "an unreadable error"


@pytest.mark.parametrize(
    ("offered", "asked", "with_secret"),
    [
        ((), BASIC, BASIC),
        ((NONE, BASIC), NONE, BASIC),
        ((POST,), POST, POST),
        ((BASIC, POST), POST, BASIC),
        (("x",), NONE, BASIC),
    ],
)
def test_the_method_is_one_that_the_issuer_offers(offered, asked, with_secret):
    found = IssuerMetadata("i", "t", auth_methods=offered)
    assert choose_auth_method(found) == asked
    assert registered_client("c", "s", "", found).method == with_secret
    assert registered_client("c", "", "", found).method == NONE


def test_a_client_proves_itself_by_its_method():
    form = {"grant_type": "x"}
    headers, sent = authenticate(OAuthClient("i d", BASIC, "s:é"), form)
    assert base64.b64decode(headers["authorization"][6:]) == b"i%20d:s%3A%C3%A9"
    assert sent == {**form, "client_id": "i d"}, "some issuers read the id from the form alone"
    headers, sent = authenticate(OAuthClient("c", POST, "s"), form)
    assert (headers, sent["client_id"], sent["client_secret"]) == ({}, "c", "s")
    assert authenticate(OAuthClient("c"), form) == ({}, {**form, "client_id": "c"})
    _, sent = authenticate(OAuthClient("c", JWT), form, "signed")
    assert sent["client_assertion"] == "signed"


@pytest.mark.parametrize(
    ("wanted", "challenged", "offered", "known", "chosen"),
    [
        ((), ("c",), ("o",), (), ("c",)),
        ((), (), ("o", "p"), (), ("o", "p")),
        ((), (), (), (), ()),
        (("w",), ("c",), ("o",), (), ("w",)),
        ((), ("c",), (), ("offline_access",), ("c", "offline_access")),
        ((), ("c", "offline_access"), (), ("offline_access",), ("c", "offline_access")),
    ],
)
def test_scopes_are_those_of_the_challenge_or_of_the_server_or_none(
    wanted, challenged, offered, known, chosen
):
    found = IssuerMetadata("i", "t", scopes=known)
    assert choose_scopes(wanted, challenged, offered, found) == chosen


def test_a_step_up_asks_for_all_that_was_asked_for_and_more():
    assert step_up(("a", "b"), ("b", "c")) == ("a", "b", "c")
    assert step_up(("a", "b"), ("b",)) is None
    assert step_up((), ()) is None


def test_a_browser_is_sent_with_pkce_and_the_resource_as_it_is_written():
    pkce = make_pkce()
    assert pkce.verifier != make_pkce().verifier
    url = authorization_url(
        "https://as/authorize?tenant=1#x",
        SignInRequest("c", "http://127.0.0.1/cb", "st", pkce.challenge, ("a", "b"), SERVER),
    )
    sent = read_callback(url.partition("?")[2])
    assert sent["tenant"] == "1"
    assert sent["code_challenge_method"] == "S256"
    assert sent["resource"] == SERVER
    assert sent["scope"] == "a b"
    assert "#" not in url


@pytest.mark.parametrize(
    ("answer", "names_itself", "why"),
    [
        ("code=c&iss=https%3A%2F%2Fas", True, None),
        ("code=c&iss=https%3A%2F%2Fas", False, None),
        ("code=c", False, None),
        ("code=c", True, "does not say which issuer"),
        ("code=c&iss=https%3A%2F%2Fas%2F", False, "another issuer"),
        ("code=c&iss=https%3A%2F%2Fevil", True, "another issuer"),
        ("error=secret_words&iss=https%3A%2F%2Fevil", True, "another issuer"),
        ("error=secret_words", True, "does not say which issuer"),
        ("error=access_denied&iss=https%3A%2F%2Fas", True, "access_denied"),
        ("iss=https%3A%2F%2Fas", True, "no code"),
        ("code=c&code=d", False, "no code"),
    ],
)
def test_an_answer_counts_only_from_the_issuer_that_was_asked(answer, names_itself, why):
    found = read_callback(answer)
    if why is None:
        assert take_code(found, "https://as", "as", names_itself=names_itself) == "c"
        return
    with pytest.raises(OAuthError, match=why) as raised:
        take_code(found, "https://as", "as", names_itself=names_itself)
    assert "secret_words" not in str(raised.value)


TEN_YEARS = 10 * 366 * 86_400.0


def jwt(**claims):
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return f"e30.{body}.c2ln"


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        ({"expires_in": 60}, 1060.0),
        ({"expires_in": "60"}, 1060.0),
        ({"expires_in": 0}, 1000.0),
        ({"expires_in": -5}, 1000.0),
        ({"expires_in": "soon"}, None),
        ({"expires_in": None}, None),
        ({"expires_in": True}, None),
        ({}, None),
        ({"access_token": jwt(exp=1300)}, 1300.0),
        ({"access_token": jwt(exp=700)}, None),  # a clock that is five minutes off
        ({"access_token": jwt(exp="x")}, None),
        ({"access_token": "a.b.c"}, None),
        ({"access_token": jwt(exp=1300), "expires_in": 60}, 1060.0),
        ({"expires_in": 10**400}, 1000.0 + TEN_YEARS),
        ({"expires_in": "1e400"}, 1000.0 + TEN_YEARS),
        ({"expires_in": "nan"}, None),
        ({"access_token": jwt(exp=10**400)}, 1000.0 + TEN_YEARS),
        ({"access_token": jwt(exp=1e308)}, 1000.0 + TEN_YEARS),
    ],
)
def test_no_lifetime_is_made_up(fields, end):
    answer = {"access_token": "t", "token_type": "Bearer", **fields}
    found = read_token_answer(200, "application/json", json.dumps(answer).encode(), "as", 1000.0)
    assert found.expires_at == end


def test_an_answer_without_a_refresh_token_keeps_the_old_one_and_the_scopes():
    body = b'{"access_token": "t", "refresh_token": "", "scope": ""}'
    found = read_token_answer(200, "", body, "as", 0.0, refresh="old", scopes=("a",))
    assert (found.refresh, found.scopes) == ("old", ("a",))
    body = b"access_token=t&refresh_token=new&scope=b+c&token_type=bearer"
    kind = "application/x-www-form-urlencoded; charset=utf-8"
    found = read_token_answer(200, kind, body, "as", 0.0, refresh="old", scopes=("a",))
    assert (found.access, found.refresh, found.scopes) == ("t", "new", ("b", "c"))


@pytest.mark.parametrize(
    ("status", "body", "ends", "forgets"),
    [
        (400, b'{"error": "invalid_grant"}', True, False),
        (401, b'{"error": "invalid_grant"}', True, False),
        (503, b'{"error": "invalid_grant"}', False, False),
        (200, b'{"error": "invalid_grant"}', False, False),
        (401, b'{"error": "invalid_client"}', False, True),
        (400, b'{"error": "invalid_request"}', False, False),
        (429, b'{"error": "slow_down"}', False, False),
        (503, b"<html>down</html>", False, False),
        (302, b"", False, False),
        (200, b"<html>", False, False),
        (200, b'{"access_token": "has space"}', False, False),
        (200, b'{"access_token": "line\\r\\nbreak"}', False, False),
        (200, b'{"access_token": "t", "token_type": "DPoP"}', False, False),
        (200, b'{"access_token": 7}', False, False),
    ],
)
def test_only_invalid_grant_ends_a_grant(status, body, ends, forgets):
    with pytest.raises(OAuthError, match="token request at as") as raised:
        read_token_answer(status, "application/json", body, "as", 0.0)
    assert is_grant_over(raised.value) is ends
    assert is_client_unknown(raised.value) is forgets


def test_a_token_is_renewed_in_the_last_fifth_of_its_life_and_at_most_minutes_before():
    assert renewal_time(0.0, 100.0, 0.0) == 80.0
    assert renewal_time(0.0, 100.0, 1.0) == 75.0
    assert renewal_time(0.0, 36_000.0, 0.0) == 35_700.0
