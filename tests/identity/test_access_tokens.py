"""AccessTokens: which tokens of the door's issuer are accepted, and as whom."""

import json
import time

import pytest
from tests.fakes.signed_tokens import forge, sign, signing_key
from tests.http.origin import Origin

from mcp_junction.config.door import DoorConfig
from mcp_junction.errors import AddressRefused, IssuerUnavailable, TokenRefused
from mcp_junction.identity.issuer_keys import AGAIN, SERVES_FOR, IssuerKeys, fetch_document
from mcp_junction.identity.tokens import AccessTokens, find_claim, fulfils
from mcp_junction.policy.principal import Role
from mcp_junction.upstream.http.fetch import MAX_BODY

ISSUER = "https://issuer.example/t"
OURS = "https://junction.example"


class Documents:
    """Answers what the issuer publishes, and counts."""

    def __init__(self, *keys):
        self.keys = list(keys)
        self.fetched = []
        self.fails = False

    async def __call__(self, url):
        self.fetched.append(url)
        if self.fails:
            raise ConnectionError("away")
        if "jwks" not in url:
            return json.dumps({"issuer": ISSUER, "jwks_uri": f"{ISSUER}/jwks"}).encode()
        return json.dumps({"keys": [key.as_dict(private=False) for key in self.keys]}).encode()

    @property
    def key_fetches(self):
        return sum("jwks" in url for url in self.fetched)


class World:
    """AccessTokens with an issuer and clocks in the test's hands."""

    def __init__(self, *keys, admit=None, **door):
        self.now = time.time()
        self.documents = Documents(*(keys or [signing_key()]))
        config = DoorConfig(ISSUER, "corp", **door)
        self.issuer_keys = IssuerKeys(config, self.documents, lambda: self.now)
        self.tokens = AccessTokens(config, self.issuer_keys, admit=admit, now=lambda: self.now)
        self.tokens.public_url = OURS

    def token(self, key=None, alg="", typ="at+jwt", **claims):
        at = int(self.now)
        usual = {"iss": ISSUER, "aud": f"{OURS}/mcp", "sub": "alice", "iat": at, "exp": at + 600}
        return sign(key or self.documents.keys[0], alg, typ, **{**usual, **claims})

    async def verify(self, token):
        return await self.tokens.verify(f"Bearer {token}".encode())

    async def reason(self, token):
        with pytest.raises(TokenRefused) as refused:
            await self.verify(token)
        assert token not in str(refused.value)
        return refused.value.reason


@pytest.mark.parametrize("kind", ["RS256", "PS256", "ES256", "Ed25519"])
async def test_a_token_of_the_issuer_is_its_agent(kind):
    key = signing_key("RS256" if kind == "PS256" else kind)
    world = World(key)
    principal = await world.verify(world.token(key, kind))
    assert (principal.id, principal.role) == ("corp:alice", Role.AGENT)


async def test_the_former_name_of_ed25519_is_understood():
    key = signing_key("Ed25519")
    world = World(key)
    with pytest.warns():
        token = world.token(key, "EdDSA")
    assert (await world.verify(token)).id == "corp:alice"


@pytest.mark.parametrize("typ", ["at+jwt", "AT+JWT", "application/at+jwt", "JWT", None])
async def test_the_type_of_an_access_token_is_accepted(typ):
    world = World()
    assert await world.verify(world.token(typ=typ))


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"aud": "https://other.example"}, "audience"),
        ({"aud": f"{OURS}/mcpx"}, "audience"),
        ({"aud": f"{OURS}.evil.example/mcp"}, "audience"),
        ({"aud": []}, "audience"),
        ({"aud": None}, "audience"),
        ({"exp": None}, "malformed"),
        ({"exp": "soon"}, "malformed"),
        ({"exp": True}, "malformed"),
        ({"exp": int(time.time()) - 61}, "expired"),
        ({"nbf": int(time.time()) + 3600}, "malformed"),
        ({"iat": int(time.time()) + 3600}, "malformed"),
        ({"iss": "https://issuer.example"}, "issuer"),
        ({"iss": f"{ISSUER}/"}, "issuer"),
        ({"iss": None}, "issuer"),
        ({"nonce": "n"}, "malformed"),
        ({"at_hash": "h"}, "malformed"),
        ({"sub": None}, "malformed"),
        ({"sub": "a\nb"}, "malformed"),
        ({"sub": "x" * 300}, "malformed"),
        ({"typ": "logout+jwt"}, "malformed"),
    ],
)
async def test_a_token_that_is_not_right_is_refused_with_the_reason(claims, reason):
    world = World()
    assert await world.reason(world.token(**claims)) == reason


@pytest.mark.parametrize("alg", ["none", "HS256"])
async def test_a_token_without_a_signature_of_the_issuer_is_refused(alg):
    world = World()
    assert await world.reason(forge(world.token(), alg)) == "signature"
    assert not world.documents.fetched, "no key is fetched for it"


async def test_a_token_of_another_key_with_a_known_id_is_refused():
    world = World()
    other = signing_key("RS256", "other").as_dict(private=True)
    fake = type(signing_key()).import_key({**other, "kid": signing_key().kid})
    assert await world.reason(world.token(fake)) == "signature"


async def test_a_changed_token_is_refused():
    world = World()
    head, _, signature = world.token().split(".")
    body = world.token(sub="bob").split(".")[1]
    assert await world.reason(f"{head}.{body}.{signature}") == "signature"


@pytest.mark.parametrize("text", ["x", "a.b", "a.b.c", "....", "e30.e30.e30", "é.é.é", "a" * 20000])
async def test_what_is_no_token_is_malformed(text):
    assert await World().reason(text) == "malformed"


async def test_a_short_rsa_key_is_not_used():
    with pytest.warns():
        short = signing_key("RS256", "short")
    world = World(signing_key(), short)
    assert await world.reason(world.token(short)) == "signature"


async def test_an_algorithm_that_is_not_listed_is_refused():
    world = World(algorithms=("ES256",))
    assert await world.reason(world.token()) == "signature"


async def test_the_clocks_may_differ_by_a_minute():
    world = World()
    at = int(world.now)
    assert await world.verify(world.token(exp=at - 55, iat=at - 100))
    assert await world.verify(world.token(iat=at + 55, nbf=at + 55))


@pytest.mark.parametrize("audience", [OURS, f"{OURS}/mcp", f"{OURS}/mcp/files", [OURS, "x"]])
async def test_an_endpoint_of_ours_is_the_audience(audience):
    world = World()
    assert await world.verify(world.token(aud=audience))


async def test_a_configured_audience_is_the_only_one():
    world = World(audience=("api://junction",))
    assert await world.verify(world.token(aud="api://junction"))
    assert await world.reason(world.token()) == "audience"


# -- who it is


async def test_a_role_is_given_by_scope_or_claim_and_else_it_is_an_agent():
    roles = {
        "junction.admin": "admin",
        "realm_access.roles=ops": "orchestrator",
        "v=true": "viewer",
    }
    world = World(roles=roles)

    async def role(**claims):
        return (await world.verify(world.token(**claims))).role

    assert await role(scope="openid junction.admin") is Role.ADMIN
    assert await role(scp=["junction.admin"]) is Role.ADMIN
    assert await role(scope="junction.admin.not") is Role.AGENT
    assert await role(realm_access={"roles": ["ops", "x"]}) is Role.ORCHESTRATOR
    assert await role(v=True) is Role.VIEWER
    assert await role(role="admin", roles=["admin"]) is Role.AGENT, "nothing without a mapping"


def test_claims_are_found_by_name_or_path():
    claims = {"https://x.example/roles": ["a"], "b": {"c": "d"}}
    assert find_claim(claims, "https://x.example/roles") == ["a"]
    assert find_claim(claims, "b.c") == "d"
    assert find_claim(claims, "b.c.e") is None
    assert fulfils(claims, "https://x.example/roles=a")
    assert not fulfils(claims, "b=c")


async def test_an_agent_may_be_named_by_another_claim():
    world = World(agent_claim="client_id")
    assert (await world.verify(world.token(client_id="ci"))).id == "corp:ci"
    assert await world.reason(world.token()) == "malformed"


async def test_tokens_that_give_the_same_are_one_principal_and_others_are_not():
    world = World(admit=lambda agent, found: f"{agent}#{len(found)}", grants={"r": (), "w": ()})
    first = await world.verify(world.token(scope="r", jti="1"))
    assert await world.verify(world.token(scope="r", jti="2")) is first
    assert await world.verify(world.token(scope="r x", jti="2")) is not first  # it claims more
    assert await world.verify(world.token(scope="r w")) != first
    assert (await world.verify(world.token())).grantee == ""


# -- what is kept


async def test_a_principal_has_the_claims_of_its_token_but_for_what_is_of_one_token():
    world = World()
    first = await world.verify(world.token(team="blue", jti="1", n=2**53 + 1))
    world.now += 10
    assert await world.verify(world.token(team="blue", jti="2", n=2**53 + 1)) is first
    assert first.claims.values["team"] == "blue"
    assert first.claims.values["n"] == 2**53 + 1
    assert not {"exp", "iat", "jti"} & set(first.claims.values)
    other = await world.verify(world.token(team="red"))
    assert (other != first, other.id == first.id) == (True, True)
    assert "blue" not in repr(first)


async def test_a_verified_token_is_known_until_it_expires():
    world = World()
    header = f"Bearer {world.token()}".encode()
    principal = await world.tokens.verify(header)
    assert world.tokens.verified[header] is principal
    world.now += 599
    assert world.tokens.expire() == set()
    world.now += 2
    assert world.tokens.expire() == {principal}, "its streams end"
    assert header in world.tokens.verified, "as long as it would be verified again"
    world.now += 60
    assert world.tokens.expire() == set()
    assert not world.tokens.verified


async def test_what_a_token_gives_is_kept_as_long_as_the_token_is_accepted():
    world = World(admit=lambda agent, conditions: f"{agent}#1", grants={"read": ["files.*"]})
    header = f"Bearer {world.token(scope='read')}".encode()
    principal = await world.tokens.verify(header)
    world.now += 601
    world.tokens.expire()
    assert header in world.tokens.verified, "the clocks may differ"
    assert world.tokens.grantees == {principal.grantee} == {"corp:alice#1"}
    world.now += 60
    world.tokens.expire()
    assert world.tokens.grantees == set()


async def test_a_newer_token_keeps_what_is_open():
    world = World()
    await world.verify(world.token())
    world.now += 500
    principal = await world.verify(world.token())
    world.now += 200
    assert world.tokens.expire() == set()
    assert world.tokens.is_in_force(principal)


# -- the issuer's keys


async def test_keys_are_fetched_once_and_new_ones_when_they_are_met():
    world = World()
    await world.verify(world.token())
    await world.verify(world.token(jti="2"))
    assert world.documents.key_fetches == 1
    new = signing_key("RS256", "two")
    world.documents.keys.append(new)
    assert await world.reason(world.token(new)) == "signature", "it was fetched just now"
    world.now += AGAIN
    await world.verify(world.token(new))
    assert world.documents.key_fetches == 2
    for number in range(20):
        unknown = signing_key("RS256", "three")
        assert await world.reason(world.token(unknown, jti=str(number))) == "signature"
    assert world.documents.key_fetches == 2, "at most once in 30 seconds"


async def test_known_keys_serve_a_day_without_the_issuer_and_then_none_does():
    world = World()
    await world.verify(world.token())
    world.documents.fails = True
    world.now += SERVES_FOR - 1
    await world.issuer_keys.refresh()
    await world.verify(world.token())
    world.now += 2
    with pytest.raises(IssuerUnavailable):
        await world.verify(world.token())
    world.documents.fails = False
    world.now += AGAIN
    await world.verify(world.token())


async def test_a_key_that_the_issuer_withdraws_is_good_no_more():
    world = World(signing_key(), signing_key("RS256", "two"))
    await world.verify(world.token(signing_key("RS256", "two")))
    del world.documents.keys[1]
    await world.issuer_keys.refresh()
    assert await world.reason(world.token(signing_key("RS256", "two"), jti="x")) == "signature"


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"issuer": "https://evil.example", "jwks_uri": "https://evil.example"}',
     b'{"issuer": "https://issuer.example/t", "jwks_uri": "http://issuer.example/jwks"}'],
)  # fmt: skip
async def test_metadata_that_is_not_the_issuers_own_gives_no_keys(body):
    world = World()

    async def fetch(url):
        return body

    world.issuer_keys._fetch = fetch
    with pytest.raises(IssuerUnavailable):
        await world.verify(world.token())


async def test_a_token_without_a_key_id_is_tried_with_each_key_that_fits():
    world = World(signing_key(), signing_key("RS256", "two"))
    anonymous = signing_key("RS256", "two").as_dict(private=True)
    del anonymous["kid"]
    key = type(signing_key()).import_key(anonymous)
    token = sign(key, "RS256", iss=ISSUER, aud=OURS, sub="a", exp=int(world.now) + 60)
    assert (await world.verify(token)).id == "corp:a"


# -- how they are fetched


@pytest.mark.req("S-05")
@pytest.mark.parametrize(
    "url",
    [
        "https://169.254.169.254/jwks",
        "http://10.0.0.1/jwks",
        "http://[fd00:ec2::254]/",
        "file:///x",
    ],
)
async def test_keys_are_not_fetched_where_no_issuer_may_be(url):
    with pytest.raises((AddressRefused, ValueError)):
        await fetch_document(url)


@pytest.mark.req("S-05")
async def test_a_redirect_or_a_body_without_end_gives_no_keys():
    async def answer(visit):
        if visit.path == "/away":
            visit.answer(302, location="http://127.0.0.1/secret")
        else:
            visit.answer(200, b"x" * (MAX_BODY + 1))

    async with Origin(answer) as origin:
        root = f"http://127.0.0.1:{origin.port}"
        with pytest.raises(ValueError, match="status 302"):
            await fetch_document(f"{root}/away")
        with pytest.raises(ConnectionError, match="over the limit"):
            await fetch_document(f"{root}/long")
        assert [visit.path for visit in origin.visits] == ["/away", "/long"]
