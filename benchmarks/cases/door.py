"""Calls with an access token at our door, against calls with a key, on one process."""

import asyncio
import json
import time
from dataclasses import replace

from budgets import Figure, Ratio
from cases.eras import by
from cases.governed import GRANTS, KINDS, ON, UP
from measure import compared, cpu_of_loads
from registry import case
from targets import HttpTarget, Lab, free_port

AUDIENCE = "https://bench.example/mcp"
ISSUER = "https://issuer.bench.example"


def what(era: str) -> str:
    return f"CPU per call, access token, {era}"


async def publish_keys(lab: Lab, port: int, keys: bytes) -> None:
    """Answer every request with the issuer's keys, until the case ends."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(keys), keys))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", port)
    lab.callback(server.close)


@case("door-token", budget={what(era): Ratio(1.1) for era in KINDS}, front="http")
async def door_token(lab: Lab) -> list[Figure]:
    """300-byte echo calls of 32 clients that show a token, against 32 that show a key."""
    from joserfc import jwt
    from joserfc.jwk import RSAKey

    key, port = RSAKey.generate_key(2048, {"kid": "bench"}), free_port()
    await publish_keys(lab, port, json.dumps({"keys": [key.as_dict(private=False)]}).encode())
    door = {
        "issuer": ISSUER,
        "audience": [AUDIENCE],
        "grants": {"bench": list(GRANTS)},
        "jwks_uri": f"http://127.0.0.1:{port}/jwks",
    }
    now = int(time.time())
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "bench", "scope": "bench", "iat": now}
    header = {"alg": "RS256", "kid": "bench", "typ": "at+jwt"}
    token = jwt.encode(header, {**claims, "exp": now + 7200}, key)
    with_key = await lab.serve_governed(UP, GRANTS, **ON, door=door)
    with_token: HttpTarget = replace(
        with_key, headers={"authorization": f"Bearer {token}"}, clients=[]
    )
    loads = {
        f"{name}, {era}": by(lab, target, kind)
        for era, kind in KINDS.items()
        for name, target in (("key", with_key), ("token", with_token))
    }
    taken = await cpu_of_loads(lab, loads)
    return [compared(taken, f"token, {era}", f"key, {era}", what(era), "µs") for era in KINDS]
