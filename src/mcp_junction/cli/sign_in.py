"""``servers login``, ``logout`` and ``auth``: signing in to servers of a running service.

The browser ends at an address of this machine, where this program listens and hands the answer to
the service; so whoever has opened the link must be here. Without a browser here, the link can be
opened anywhere, and the address at which the browser ended is pasted.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
import webbrowser
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from mcp_junction.cli.printing import print_message, print_table
from mcp_junction.cli.remote import ServiceClient, server_path
from mcp_junction.errors import JunctionError, UsageError

if TYPE_CHECKING:
    from mcp_junction.upstream.tokens import TokenSource

_PATIENCE: Final = 600.0
_NOBODY: Final = "nobody has signed in within ten minutes; try again"
_DONE: Final = b"<!doctype html><p>You can close this page and go back to the terminal.</p>"


def log_in(args: argparse.Namespace, remote: ServiceClient) -> int:
    if args.config:
        from mcp_junction.cli.runner import run_async

        return run_async(_log_in_here(args))
    with _Listener(args.port) as listener:
        path = f"{server_path(args.name)}/auth"
        wanted = {"redirect_uri": listener.url, **({"agent": args.agent} if args.agent else {})}
        login = remote.post(f"{path}/login", wanted)
        print(f"Open this link to sign in:\n\n  {login['url']}\n", file=sys.stderr, flush=True)
        if args.no_browser:
            ended = _read_pasted()
        else:
            webbrowser.open(login["url"])
            ended = listener.wait()
    done = remote.post(f"{path}/logins/{login['login_id']}/complete", {"callback_url": ended})
    return print_message(args, done, f"{args.name}: signed in")


async def _log_in_here(args: argparse.Namespace) -> int:
    """Sign in without a service, for processes that use the same data directory."""
    from mcp_junction.app import Junction
    from mcp_junction.cli.environment import variables
    from mcp_junction.cli.local_credentials import open_local_credentials
    from mcp_junction.config.load import load
    from mcp_junction.credentials.kinds import StoredSource

    config = load(args.config, variables(), {}, lenient=True)
    chosen = [one for one in config.servers if one.key == args.name]
    if not chosen or chosen[0].transport == "stdio":
        raise UsageError(f"{args.config} has no remote server {args.name!r}")
    config = config._replace(servers=tuple(chosen))
    async with (
        open_local_credentials(config, args.data_dir) as credentials,
        Junction(config, environ=variables(), token_sources=credentials) as junction,
    ):
        junction.greet()
        upstream = junction.servers[args.name]
        await upstream.settled.wait()
        source = upstream.tokens
        if not isinstance(source, StoredSource) or not source.is_signed_out:
            words = f"{args.name}: it does not ask for a sign-in now"
            print_message(args, {"status": "not asked for"}, words)
            return 0 if upstream.link is not None else 1
        link = credentials.link_for(source)
        print(f"Open this link to sign in:\n\n  {link}\n", file=sys.stderr, flush=True)
        if not args.no_browser:
            webbrowser.open(link)
        try:
            async with asyncio.timeout(_PATIENCE):
                await _wait_until_signed_in(source)
        except TimeoutError:
            raise JunctionError(_NOBODY) from None
    return print_message(args, {"status": "signed in"}, f"{args.name}: signed in")


async def _wait_until_signed_in(source: TokenSource) -> None:
    while source.is_signed_out:
        await source.wait_for_change()


def log_out(args: argparse.Namespace, remote: ServiceClient) -> int:
    agent = f"?{urlencode({'agent': args.agent})}" if args.agent else ""
    remote.delete(f"{server_path(args.name)}/auth{agent}")
    return print_message(args, {"status": "signed out"}, f"{args.name}: signed out")


def show_auth(args: argparse.Namespace, remote: ServiceClient) -> int:
    found = remote.get(f"{server_path(args.name)}/auth")["items"]
    rows = [
        (one["subject"], one["state"], one["until"], one["issuer"], one["reason"]) for one in found
    ]
    headings = ("whose", "state", "until", "issuer", "")
    return print_table(args, found, headings, rows, f"{args.name} has not asked for a sign-in.")


def _read_pasted() -> str:
    print("Paste the address at which the browser ended:", file=sys.stderr, flush=True)
    pasted = sys.stdin.readline().strip()
    if "?" not in pasted:
        raise UsageError("that is no address with an answer; it has a ? and a code in it")
    return pasted


class _Listener:
    """Listens on loopback for the one request with the answer."""

    def __init__(self, port: int) -> None:
        arrived = self._arrived = threading.Event()
        paths = self._paths = []  # type: list[str]

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if not self.path.startswith("/callback?"):
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("content-type", "text/html; charset=utf-8")
                self.send_header("content-length", str(len(_DONE)))
                self.end_headers()
                self.wfile.write(_DONE)
                paths.append(self.path)
                arrived.set()

            def log_message(self, format: str, *args: Any) -> None:
                """Print nothing: the path holds a code."""

        try:
            self._server = HTTPServer(("127.0.0.1", port), Handler)
        except OSError as error:
            raise UsageError(f"--port {port}: {error.strerror}") from None
        self._base = f"http://127.0.0.1:{self._server.server_port}"
        self.url = f"{self._base}/callback"

    def __enter__(self) -> _Listener:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def wait(self) -> str:
        """Wait for the answer, and return the address that it came to."""
        if not self._arrived.wait(_PATIENCE):
            raise JunctionError(_NOBODY)
        return self._base + self._paths[0]
