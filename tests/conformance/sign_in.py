"""How the client of the suite's `auth/*` scenarios signs in through the gateway.

A scenario has a gateway of its own, or registers its server with one that runs for all of them.
The gateway meets the suite's server and its authorization server; this asks it over REST whether it
needs a sign-in, opens the link as a browser does, and goes on when it is signed in. The suite's
issuer answers a browser at once, so a GET that follows redirects is the person.
"""

import json
import time
import urllib.error
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

CLIENT_METADATA = "https://conformance-test.local/client-metadata.json"
SERVERS = "/api/v1/aggregator/servers"
SIGN_IN_NEEDED = -32006
MOST = 3
_PATIENCE = 8.0


def auth_of(scenario: str, context: dict[str, Any], folder: Path) -> dict[str, Any] | None:
    """The `auth` of the server's entry in a scenario; None where a plain url is enough."""
    if scenario == "auth/basic-cimd":
        return {"type": "oauth", "client_metadata_url": CLIENT_METADATA}
    if "private_key_pem" in context:
        key = folder / "key.pem"
        key.write_text(context["private_key_pem"])
        found = {"client_id": context["client_id"], "private_key_file": str(key)}
        return {"type": "client_credentials", **found}
    if "valid_jwt" in context:
        token = folder / "workload.jwt"
        token.write_text(context["valid_jwt"])
        return {"type": "wif", "assertion_file": str(token)}
    if "client_id" not in context:
        return None
    names = ("client_id", "client_secret")
    kind = "client_credentials" if "client-credentials" in scenario else "oauth"
    return {"type": kind, **{name: context[name] for name in names if name in context}}


class Operator:
    """Whoever runs the gateway, with its REST API and a browser, and one of its servers."""

    def __init__(self, url: str, data: Path, name: str = "mock") -> None:
        self._name = name
        self._auth = f"{SERVERS}/{name}/auth"
        self._url = url.removesuffix("/mcp")
        self._key = (data / "admin.key").read_text().strip()
        jar = urllib.request.HTTPCookieProcessor(CookieJar())
        self._browser = urllib.request.build_opener(jar)

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"authorization": f"Bearer {self._key}", "content-type": "application/json"}
        request = urllib.request.Request(self._url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=15) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            raise SystemExit(f"{method} {path}: {error.read().decode()}") from None

    def register(self, url: str, auth: dict[str, Any] | None) -> None:
        """Register the server, where the gateway has it not from its file."""
        config = {"url": url} if auth is None else {"url": url, "auth": auth}
        body = {"name": self._name, "transport_type": "HTTP", "connection_config": config}
        self._ask("POST", SERVERS, body)

    def server(self) -> Any:
        return self._ask("GET", f"{SERVERS}/{self._name}")

    def settle(self) -> str | None:
        """Wait until the server is connected or wants a sign-in; the state of its credential."""
        end = time.monotonic() + _PATIENCE
        while True:
            shown = self.server()
            auth = shown["auth"] or {}
            state = auth.get("state")
            if shown["status"] == "CONNECTED" and state in (None, "signed_in"):
                return state
            if shown["status"] == "ERROR" and state not in (None, "signed_in"):
                return state
            if time.monotonic() > end:
                raise SystemExit(f"the server is {shown['status']}: {shown['error_message']}")
            time.sleep(0.05)

    def sign_in(self) -> None:
        """Sign in once; ends the program when that is refused."""
        login = self._ask("POST", f"{self._auth}/login", {})
        try:
            self._browser.open(login["url"], timeout=15).read()
        except urllib.error.HTTPError as error:
            error.read()
        status = self._ask("GET", f"{self._auth}/logins/{login['login_id']}")
        if status["status"] != "completed":
            raise SystemExit(f"the sign-in is {status['status']}: {status['reason']}")

    def connect(self) -> None:
        """Sign in as often as the server wants it, but not for ever."""
        for _ in range(MOST):
            if self.settle() != "needs_sign_in":
                return
            self.sign_in()
        if self.settle() not in (None, "signed_in"):
            raise SystemExit("the server wants yet another sign-in")
