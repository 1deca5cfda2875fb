"""ServiceClient: the REST client with which commands reach a running service, and how they run.

The key is that of ``--key``, else of ``JUNCTION_KEY``, else, for this machine only, the
administrator's key that the first start of the service left in the data directory.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from mcp_junction.cli.environment import variables
from mcp_junction.cli.options import (
    Action,
    add_actions,
    add_data_dir,
    add_json,
    add_options,
    data_dir,
    option,
    option_group,
)
from mcp_junction.errors import JunctionError, RequestError, UsageError

DEFAULT: Final = "http://127.0.0.1:8420"
SERVERS: Final = "/api/v1/aggregator/servers"
_WAIT: Final = 75.0
_PAGE: Final = 500
_NEXT: Final = re.compile(r'<([^>]+)>; rel="next"')
_HERE: Final = ("127.0.0.1", "localhost", "::1")


_ADDRESS: Final = (
    option("--url", metavar="URL", help=f"its address (default: JUNCTION_URL, or {DEFAULT})"),
    option(
        "--key",
        help="the key to send (default: JUNCTION_KEY, or on this machine the administrator's, which"
        " the first `serve` left in the data directory)",
    ),
)
add_address_options: Final = option_group("the service", *_ADDRESS)
"""Adds the options that name a running service and the key for it."""


def add_remote_options(options: argparse._ActionsContainer) -> None:
    """Add the options of a command that asks a running service."""
    add_options(options, option_group("the service", *_ADDRESS, add_data_dir), add_json)


class ServiceClient:
    """A running service."""

    def __init__(self, url: str, key: str | None) -> None:
        parts = urlsplit(url)
        try:
            self._port = parts.port
        except ValueError:
            self._port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or self._port == -1:
            raise UsageError(f"--url {url}: must be like {DEFAULT}")
        self.url = url.rstrip("/")
        self._host = parts.hostname
        self._is_tls = parts.scheme == "https"
        self._base = parts.path.rstrip("/")
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    @classmethod
    def from_options(cls, args: argparse.Namespace) -> ServiceClient:
        """Make the client for the service that the options, or else the environment, name."""
        environ = variables()
        url = args.url or environ.get("JUNCTION_URL") or DEFAULT
        key = args.key or environ.get("JUNCTION_KEY")
        if not key and urlsplit(url).hostname in _HERE:  # never send it elsewhere
            from mcp_junction.identity.keys import read_admin_key

            key = read_admin_key(data_dir(args))
        return cls(url, key)

    def get(self, path: str, **query: Any) -> Any:
        return self._request("GET", _add_query(path, query))

    def post(self, path: str, body: Any = None) -> Any:
        return self._request("POST", path, body)

    def patch(self, path: str, body: Any) -> Any:
        return self._request("PATCH", path, body)

    def delete(self, path: str) -> None:
        self._request("DELETE", path)

    def pages(self, path: str, **query: Any) -> Iterator[Any]:
        """Iterate over all items of a list, page by page."""
        cursor = None
        while True:
            found = self.get(path, limit=_PAGE, cursor=cursor, **query)
            yield from found["items"]
            cursor = found["next_cursor"]
            if not cursor:
                return

    def array(self, path: str, **query: Any) -> Iterator[Any]:
        """Iterate over all items of a plain array under ``/api/v1/mcp``, page by page."""
        following: str | None = _add_query(path, {**query, "limit": _PAGE})
        while following:
            answer, text = self._send("GET", following)
            yield from self._parse_response(answer, text)
            link = _NEXT.match(answer.headers.get("link", ""))
            following = link[1] if link else None

    def _request(self, method: str, path: str, body: Any = None) -> Any:
        return self._parse_response(*self._send(method, path, body))

    def _send(
        self, method: str, path: str, body: Any = None
    ) -> tuple[http.client.HTTPResponse, bytes]:
        headers = dict(self._headers)
        data = None
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            headers["content-type"] = "application/json"
        kind = http.client.HTTPSConnection if self._is_tls else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=_WAIT)
        try:
            connection.request(method, self._base + path, data, headers)
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise JunctionError(
                f"there is no service at {self.url}: {error}\n"
                "start one with: mcp-junction serve, or name another with --url"
            ) from None
        finally:
            connection.close()
        return answer, text

    def _parse_response(self, answer: http.client.HTTPResponse, text: bytes) -> Any:
        try:
            value = json.loads(text) if text else None
        except ValueError:
            raise JunctionError(f"{self.url} is no Junction: its answer is not JSON") from None
        if answer.status < 400:
            return value
        error = _read_error(answer.status, value if isinstance(value, dict) else {})
        if answer.status == 401 and "www-authenticate" in answer.headers:
            error.args = (self._explain_refused_key(),)
        raise error

    def _explain_refused_key(self) -> str:
        """Say where a command takes its key from."""
        how = "give one with --key or JUNCTION_KEY"
        if self._host in _HERE:
            how += ", or name the data directory of the service with --data-dir"
        what = "does not take this key" if self._headers else "wants a key"
        return f"the service {what}: {how}"


def _read_error(status: int, body: dict[str, Any]) -> RequestError:
    """Read the body of an error: of ``/api/v1/mcp``, which has a type, or of another route."""
    found = body.get("error")
    if isinstance(found, dict):
        context = {name: value for name, value in body.items() if name != "error"}
        words = str(found.get("message", f"HTTP {status}"))
        return RequestError(str(found.get("type", "")), words, context)
    words = str(body.get("detail", f"HTTP {status}"))
    return RequestError(str(body.get("error_code", "")), words, body.get("context") or {})


def path_to(base: str, *names: str) -> str:
    """Make the path of something below another: each name is one segment, whatever it holds."""
    return "/".join((base, *(quote(name, safe="") for name in names)))


def server_path(name: str) -> str:
    return path_to(SERVERS, name)


def _add_query(path: str, query: Mapping[str, Any]) -> str:
    texts = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in query.items()
        if value is not None
    }
    return f"{path}?{urlencode(texts)}" if texts else path


# -- commands

RemoteAction = Callable[[argparse.Namespace, ServiceClient], int]


def run_action(
    parser: argparse.ArgumentParser, argv: list[str], actions: Mapping[str, Action]
) -> int:
    """Run the action that a command line names, at the service that it names."""
    add_actions(parser, actions, add_remote_options)
    return act_remotely(parser.parse_args(argv))


def act_remotely(args: argparse.Namespace) -> int:
    """Do what the options name, at the service that they name."""
    code: int = args.act(args, ServiceClient.from_options(args))
    return code


def run_listing(
    parser: argparse.ArgumentParser,
    argv: list[str],
    actions: Mapping[str, RemoteAction],
    ids: tuple[str, str],
    needed: str,
) -> int:
    """Run a command that lists by default, or acts on what is named after the action.

    ``ids`` is what a name stands for, and its help; ``needed`` asks for one where there is none.
    """
    *others, last = (name for name in actions if name != "list")
    words = f"list (default), {', '.join([*others, f'or {last}'])}"
    add_options(
        parser,
        option(
            "action",
            metavar="ACTION",
            nargs="?",
            choices=tuple(actions),
            default="list",
            help=words,
        ),
        option("ids", metavar=ids[0], nargs="*", help=ids[1]),
        add_remote_options,
    )
    args = parser.parse_args(argv)
    if args.action not in ("list", "watch") and not args.ids:
        command = parser.prog.removeprefix("mcp-junction ")
        raise UsageError(f"{command} {args.action}: {needed}")
    return actions[args.action](args, ServiceClient.from_options(args))
