"""A small MCP server on stdio: the loop the demo servers share.

It speaks the revisions with a handshake (2024-11-05 to 2025-11-25), one JSON-RPC message per line.
Tools are answered where they are read, one after the other; a tool marked ``slow`` gets a thread of
its own, can report progress, and stops when its request is cancelled. All writes take one lock, and
what a cancelled request still sends is dropped under that same lock: after the cancellation
was read, nothing more of it is sent.

Arguments are checked by the handful of JSON Schema keywords that the demo tools use: type,
required, minimum, maximum, minLength, maxLength, minItems, maxItems, items.

It is not a library for other servers: no HTTP, no batches, no requests to the client, one page
per list, and it does not insist on the handshake coming first. For your own server take the SDK.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time

from mcp_junction import __version__

TYPE_CHECKING = False  # not imported: `typing` would add a quarter to these programs' start
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, NoReturn

    Json = dict[str, Any]
    Id = str | int
    Method = Callable[["DemoRequest"], Json]
    Run = Callable[["DemoRequest", Json], Json]

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
RESOURCE_NOT_FOUND = -32002

MAX_SLOW_CALLS = 64
FAREWELL_SECONDS = 2.0


class RpcError(Exception):
    """Answered as a JSON-RPC error: the request itself was wrong."""

    def __init__(self, code: int, message: str, data: Json | None = None) -> None:
        super().__init__(message)
        self.error: Json = {"code": code, "message": message}
        if data is not None:
            self.error["data"] = data


class ToolError(Exception):
    """Answered as a result with ``isError``: the model reads the message and can try again."""


class DemoTool:
    """A tool: its definition, and the function that runs when it is called."""

    def __init__(
        self,
        name: str,
        title: str,
        description: str,
        run: Run,
        *,
        properties: Json,
        required: tuple[str, ...] = (),
        output: Json | None = None,
        annotations: Json,
        slow: bool = False,
    ) -> None:
        self.name, self.run, self.slow = name, run, slow
        self.schema = object_schema(properties, required)
        self.listed: Json = {
            "name": name,
            "title": title,
            "description": description,
            "inputSchema": self.schema,
        }
        if output is not None:
            self.listed["outputSchema"] = object_schema(output, tuple(output))
        self.listed["annotations"] = {"title": title, "openWorldHint": False} | annotations


class DemoRequest:
    """One request on its way to an answer."""

    def __init__(self, server: DemoServer, id: Id, params: Json) -> None:
        self.id, self.params = id, params
        self.cancelled = threading.Event()
        self._server = server
        meta = params.get("_meta")
        self._token = meta.get("progressToken") if isinstance(meta, dict) else None

    def progress(self, done: int, total: int, message: str) -> None:
        """Send a progress notification, if the client asked for it."""
        if self._token is not None:
            params = {"progressToken": self._token, "progress": done, "total": total}
            self._server.notify("notifications/progress", params | {"message": message}, self)

    def text(self, name: str) -> str:
        """Return a parameter that must be a string. Raises RpcError."""
        value = self.params.get(name)
        if not isinstance(value, str):
            raise RpcError(INVALID_PARAMS, f"params.{name} is needed, as a string")
        return value


class DemoServer:
    """The methods a server answers, the capabilities it declares, its requests under way."""

    def __init__(self, name: str, title: str, instructions: str, tools: Iterable[DemoTool]) -> None:
        self._info: Json = {"name": name, "title": title, "version": __version__}
        self._instructions = instructions
        self._tools = {tool.name: tool for tool in tools}
        self._capabilities: Json = {}
        self._methods: dict[str, Method] = {"initialize": self._initialize, "ping": lambda _: {}}
        self._slow: dict[Id, tuple[DemoRequest, threading.Thread]] = {}
        self._lock = threading.Lock()
        self._out = -1
        self._open = True
        self.offer("tools", {}, {"tools/list": self._list_tools})

    def offer(self, capability: str, options: Json, methods: Mapping[str, Method]) -> None:
        """Declare a capability, and answer the methods that belong to it."""
        self._capabilities[capability] = options
        self._methods |= methods

    def notify(
        self, method: str, params: Json | None = None, about: DemoRequest | None = None
    ) -> None:
        message: Json = {"jsonrpc": "2.0", "method": method}
        self._send(message if params is None else message | {"params": params}, about)

    def serve(self) -> int:
        """Answer requests on standard input until it ends; return the exit status."""
        if sys.stdin.isatty():
            _explain(self._info["name"])
        self._out = sys.stdout.fileno()
        sys.stdout = sys.stderr  # a stray print must not reach the client
        signal.signal(signal.SIGTERM, _end)
        try:
            while self._open and (line := sys.stdin.buffer.readline()):
                if line.strip():
                    self._receive(line)
        except KeyboardInterrupt:
            return 130
        finally:
            self._cancel_all()
        return 0

    # Reading

    def _receive(self, line: bytes) -> None:
        try:
            message = json.loads(line.decode("utf-8-sig"), parse_constant=_not_json)
        except (ValueError, RecursionError) as error:
            self._fail(None, RpcError(PARSE_ERROR, f"Not one JSON message on one line: {error}"))
            return
        if not isinstance(message, dict):
            reason = "A message is a JSON object; batches are not taken, send one message per line"
            self._fail(None, RpcError(INVALID_REQUEST, reason))
        elif "id" in message:
            self._receive_request(message)
        elif message.get("method") == "notifications/cancelled":
            self._cancel(message.get("params"))

    def _receive_request(self, message: Json) -> None:
        id, method, params = message["id"], message.get("method"), message.get("params", {})
        if method is None and ("result" in message or "error" in message):
            return  # an answer; this server never asks, so it is not ours
        if not isinstance(id, str | int) or isinstance(id, bool):
            self._fail(None, RpcError(INVALID_REQUEST, "The id must be a string or a whole number"))
        elif message.get("jsonrpc") != "2.0" or not isinstance(method, str):
            reason = 'A request has "jsonrpc": "2.0" and a "method" that is a string'
            self._fail(id, RpcError(INVALID_REQUEST, reason))
        elif not isinstance(params, dict):
            self._fail(id, RpcError(INVALID_PARAMS, "params must be an object"))
        elif method == "tools/call":
            self._call_tool(DemoRequest(self, id, params))
        elif method in self._methods:
            self._answer(DemoRequest(self, id, params), self._methods[method])
        else:
            self._fail(id, RpcError(METHOD_NOT_FOUND, f"Method not found: {method}"))

    def _cancel(self, params: object) -> None:
        id = params.get("requestId") if isinstance(params, dict) else None
        under_way = self._slow.get(id) if isinstance(id, str | int) else None
        if under_way is not None:
            with self._lock:
                under_way[0].cancelled.set()

    def _cancel_all(self) -> None:
        under_way = list(self._slow.values())
        for request, _ in under_way:
            request.cancelled.set()
        # Bounded: a thread may be stuck writing to a client that no longer reads.
        until = time.monotonic() + FAREWELL_SECONDS
        for _, thread in under_way:
            thread.join(max(0.0, until - time.monotonic()))

    # Answering

    def _answer(self, request: DemoRequest, method: Method) -> None:
        try:
            result = method(request)
        except RpcError as error:
            self._fail(request.id, error, request)
        except Exception as error:  # noqa: BLE001 - the boundary: whatever broke, the caller is answered
            reason = f"Something broke inside this demo server: {error!r}"
            self._fail(request.id, RpcError(INTERNAL_ERROR, reason), request)
        else:
            self._send({"jsonrpc": "2.0", "id": request.id, "result": result}, request)

    def _initialize(self, request: DemoRequest) -> Json:
        asked = request.text("protocolVersion")
        return {
            "protocolVersion": asked if asked in VERSIONS else VERSIONS[-1],
            "capabilities": self._capabilities,
            "serverInfo": self._info,
            "instructions": self._instructions,
        }

    def _list_tools(self, request: DemoRequest) -> Json:
        refuse_cursor(request)
        return {"tools": [tool.listed for tool in self._tools.values()]}

    def _call_tool(self, request: DemoRequest) -> None:
        tool = self._tools.get(str(request.params.get("name")))
        if tool is None or not tool.slow:
            self._answer(request, self._run_tool)
        elif request.id in self._slow:
            reason = "The id is that of a request still under way; every request needs its own"
            self._fail(request.id, RpcError(INVALID_REQUEST, reason))
        elif len(self._slow) >= MAX_SLOW_CALLS:
            self._answer(request, _too_busy)
        else:
            thread = threading.Thread(target=self._run_slowly, args=(request,), daemon=True)
            self._slow[request.id] = request, thread
            thread.start()

    def _run_slowly(self, request: DemoRequest) -> None:
        try:
            self._answer(request, self._run_tool)
        finally:
            del self._slow[request.id]

    def _run_tool(self, request: DemoRequest) -> Json:
        name, arguments = request.text("name"), request.params.get("arguments")
        tool = self._tools.get(name)
        if tool is None:
            known = ", ".join(self._tools)
            raise RpcError(INVALID_PARAMS, f"Unknown tool: {name}. This server has: {known}")
        arguments = {} if arguments is None else arguments
        if not isinstance(arguments, dict):
            raise RpcError(INVALID_PARAMS, "params.arguments must be an object")
        if wrong := find_problems(arguments, tool.schema):
            return failure(f"Please correct the arguments of {name}: {'; '.join(wrong)}.")
        try:
            return tool.run(request, arguments)
        except ToolError as error:
            return failure(str(error))
        except OSError as error:
            return failure(f"The system refused: {error.strerror}. Check the server's files.")

    # Writing

    def _fail(self, id: Id | None, error: RpcError, about: DemoRequest | None = None) -> None:
        self._send({"jsonrpc": "2.0", "id": id, "error": error.error}, about)

    def _send(self, message: Json, about: DemoRequest | None) -> None:
        rest = json.dumps(message, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            if about is not None and about.cancelled.is_set():
                return
            try:
                while rest and self._open:
                    rest = rest[os.write(self._out, rest) :]
            except OSError:
                self._open = False  # nobody reads any more: serve() ends


def text(words: str) -> Json:
    """Make the result of a tool that answers with text."""
    return {"content": [{"type": "text", "text": words}]}


def structured(value: Json) -> Json:
    """Make the result of a tool with an output schema; older clients read the text."""
    return text(json.dumps(value, allow_nan=False)) | {"structuredContent": value}


def failure(words: str) -> Json:
    return text(words) | {"isError": True}


def refuse_cursor(request: DemoRequest) -> None:
    """Raise RpcError for a cursor: lists here have one page."""
    if request.params.get("cursor") is not None:
        raise RpcError(INVALID_PARAMS, "Unknown cursor: this list has one page; ask without it")


def show_usage(name: str, argv: list[str], usage: str) -> int:
    """For ``main``: show how the program is called, as help or as a complaint."""
    wanted = argv[:1] in (["-h"], ["--help"])
    complaint = "" if wanted else f"{name}: cannot use {' '.join(argv)!r}\n"
    print(f"{complaint}usage: mcp-junction demo {usage}", file=None if wanted else sys.stderr)
    return 0 if wanted else 2


def _too_busy(_: DemoRequest) -> Json:
    return failure(f"{MAX_SLOW_CALLS} calls are under way already; try again when one has ended.")


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _end(*_: object) -> NoReturn:
    sys.exit(128 + signal.SIGTERM)


def _explain(name: str) -> None:
    print(
        f"{name} is an MCP server: it waits for JSON-RPC on standard input. To see it at work:\n"
        "  mcp-junction inspect --config examples/demo.json\n"
        "Ctrl-D ends it.",
        file=sys.stderr,
    )


# Arguments

_SHOWN = 5  # problems reported at once
_KINDS: dict[str, tuple[str, type | tuple[type, ...], str, str]] = {
    "string": ("text", str, "minLength", "maxLength"),
    "number": ("a number", (int, float), "minimum", "maximum"),
    "integer": ("a whole number", int, "minimum", "maximum"),
    "array": ("a list", list, "minItems", "maxItems"),
}
"""What a type is called, its values in Python, and the keywords that bound them or their length."""


def object_schema(properties: Json, required: tuple[str, ...] = ()) -> Json:
    """Make the schema of an object with these properties and no others."""
    schema: Json = {"type": "object", "properties": properties}
    if required:
        schema["required"] = list(required)
    return schema | {"additionalProperties": False}


def find_problems(arguments: Json, schema: Json) -> list[str]:
    """Describe what is wrong with the arguments, one sentence each."""
    properties: Json = schema["properties"]
    found = [
        f"'{name}' is missing: {properties[name]['description']}"
        for name in schema.get("required", ())
        if name not in arguments
    ]
    known = ", ".join(f"'{name}'" for name in properties) or "none at all"
    for name, value in arguments.items():
        if name in properties:
            found += _value_problems(f"'{name}'", value, properties[name])
        else:
            found.append(f"'{name}' is not an argument of this tool; it takes {known}")
    return found[:_SHOWN]


def _value_problems(label: str, value: Any, schema: Json) -> list[str]:
    words, types, least, most = _KINDS[schema["type"]]
    if not isinstance(value, types) or isinstance(value, bool):
        return [f"{label} must be {words}"]
    measured, size = label, value
    if isinstance(value, list | str):
        measured, size = f"the length of {label}", len(value)
    found = []
    if least in schema and size < schema[least]:
        found.append(f"{measured} must be at least {schema[least]}")
    if most in schema and size > schema[most]:
        found.append(f"{measured} must be at most {schema[most]}")
    for index, item in enumerate(value if isinstance(value, list) else ()):
        if len(found) >= _SHOWN:
            break
        found += _value_problems(f"{label}[{index}]", item, schema["items"])
    return found
