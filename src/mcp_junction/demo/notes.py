"""The demo server ``notes``: short texts in a folder, as tools, as resources and in a prompt.

A note NAME is the file NAME.txt in one folder. Names are letters, digits, dots, dashes and
underscores, and only plain files the folder lists are ever opened, so no name leads out of it.
Without a folder the notes live in a temporary one and go with the program; ``examples/demo.json``
takes the folder from the variable JUNCTION_DEMO_NOTES.
It is not a document store: no editing, no history, no subfolders.
"""

from __future__ import annotations

import os
import re
import sys

from mcp_junction.demo.wire import (
    INVALID_PARAMS,
    RESOURCE_NOT_FOUND,
    DemoServer,
    DemoTool,
    RpcError,
    ToolError,
    refuse_cursor,
    show_usage,
    structured,
    text,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mcp_junction.demo.wire import DemoRequest, Json

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_SUFFIX = ".txt"
_SCHEME = "note:///"
_MIME = "text/plain"
_MAX_MATCHES = 50


class Folder:
    """The notes on disk."""

    def __init__(self, path: str) -> None:
        self._path = path

    def sizes(self) -> dict[str, int]:
        """Every note with its size in bytes, by name. Links and odd files are not notes."""
        with os.scandir(self._path) as entries:
            found = {
                entry.name.removesuffix(_SUFFIX): entry.stat(follow_symlinks=False).st_size
                for entry in entries
                if entry.name.endswith(_SUFFIX) and entry.is_file(follow_symlinks=False)
            }
        return {name: found[name] for name in sorted(found) if _NAME.fullmatch(name)}

    def has(self, name: str) -> bool:
        return name in self.sizes()

    def add(self, name: str, body: str) -> None:
        content = body.encode()
        with open(self._file(name), "xb") as file:
            try:
                file.write(content)
                file.flush()
            except OSError:  # half a note is none
                self.delete(name)
                raise

    def read(self, name: str) -> str:
        with open(self._file(name), encoding="utf-8", errors="replace", newline="") as file:
            return file.read()

    def delete(self, name: str) -> None:
        os.unlink(self._file(name))

    def _file(self, name: str) -> str:
        return os.path.join(self._path, name + _SUFFIX)


class Notes:
    """The server's tools, resources and prompt over one folder."""

    def __init__(self, folder: Folder, instructions: str) -> None:
        self._folder = folder
        tools = self._writing_tools() + self._reading_tools()
        self._server = DemoServer("junction-demo-notes", "Demo notes", instructions, tools)
        self._server.offer(
            "resources",
            {"listChanged": True},
            {
                "resources/list": self._list_resources,
                "resources/templates/list": self._list_templates,
                "resources/read": self._read_resource,
            },
        )
        prompts = {"prompts/list": self._list_prompts, "prompts/get": self._get_prompt}
        self._server.offer("prompts", {}, prompts)

    def serve(self) -> int:
        return self._server.serve()

    # Tools

    def _add(self, _: DemoRequest, arguments: Json) -> Json:
        name, body = _check_name(arguments["name"]), arguments["text"]
        try:
            self._folder.add(name, body)
        except FileExistsError:
            reason = f"There is a note {name!r} already: take another name, or delete it first."
            raise ToolError(reason) from None
        except UnicodeEncodeError:
            raise ToolError("The text has half a character (a lone surrogate) in it.") from None
        self._server.notify("notifications/resources/list_changed")
        return text(f"Added {name}.")

    def _list(self, _: DemoRequest, __: Json) -> Json:
        sizes = self._folder.sizes()
        return structured({"notes": [{"name": name, "bytes": sizes[name]} for name in sizes]})

    def _read(self, _: DemoRequest, arguments: Json) -> Json:
        return text(self._folder.read(self._existing(arguments["name"])))

    def _search(self, _: DemoRequest, arguments: Json) -> Json:
        wanted = arguments["text"].casefold()
        matches = [
            {"name": name, "line": line}
            for name in self._folder.sizes()
            for line in (name, *self._folder.read(name).splitlines())
            if wanted in line.casefold()
        ]
        return structured({"matches": matches[:_MAX_MATCHES], "total": len(matches)})

    def _delete(self, _: DemoRequest, arguments: Json) -> Json:
        name = self._existing(arguments["name"])
        self._folder.delete(name)
        self._server.notify("notifications/resources/list_changed")
        return text(f"Deleted {name}.")

    def _existing(self, name: str) -> str:
        if self._folder.has(_check_name(name)):
            return name
        raise ToolError(f"There is no note {name!r}. {self._inventory()}")

    def _inventory(self) -> str:
        names = list(self._folder.sizes())
        return f"There are: {', '.join(names[:20])}." if names else "There are no notes yet."

    # Resources

    def _list_resources(self, request: DemoRequest) -> Json:
        refuse_cursor(request)
        sizes = self._folder.sizes()
        return {"resources": [_describe(name) | {"size": sizes[name]} for name in sizes]}

    def _list_templates(self, request: DemoRequest) -> Json:
        refuse_cursor(request)
        template = {
            "uriTemplate": _SCHEME + "{name}",
            "name": "note",
            "title": "A note by its name",
            "mimeType": _MIME,
        }
        return {"resourceTemplates": [template]}

    def _read_resource(self, request: DemoRequest) -> Json:
        uri = request.text("uri")
        name = uri.removeprefix(_SCHEME)
        if not uri.startswith(_SCHEME) or not self._folder.has(name):
            raise RpcError(RESOURCE_NOT_FOUND, f"Resource not found: {uri}", {"uri": uri})
        return {"contents": [self._contents(name)]}

    def _contents(self, name: str) -> Json:
        return {"uri": _SCHEME + name, "mimeType": _MIME, "text": self._folder.read(name)}

    # Prompt

    def _list_prompts(self, request: DemoRequest) -> Json:
        refuse_cursor(request)
        note = {"name": "name", "description": "The note's name.", "required": True}
        prompt = {
            "name": "summarise",
            "title": "Summarise a note",
            "description": "Ask for a short summary of one note.",
            "arguments": [note],
        }
        return {"prompts": [prompt]}

    def _get_prompt(self, request: DemoRequest) -> Json:
        if request.text("name") != "summarise":
            raise RpcError(INVALID_PARAMS, "Unknown prompt. This server has: summarise")
        arguments = request.params.get("arguments")
        name = arguments.get("name") if isinstance(arguments, dict) else None
        if not isinstance(name, str) or not self._folder.has(name):
            reason = f"The prompt needs the argument 'name', a note's. {self._inventory()}"
            raise RpcError(INVALID_PARAMS, reason)
        parts: list[Json] = [
            {"type": "text", "text": f"Summarise my note {name} in three sentences at most."},
            {"type": "resource", "resource": self._contents(name)},
        ]
        messages = [{"role": "user", "content": part} for part in parts]
        return {"description": f"A summary of {name}", "messages": messages}

    # Definitions of the tools

    def _writing_tools(self) -> tuple[DemoTool, ...]:
        return (
            DemoTool(
                "add",
                "Add a note",
                "Keep a text under a new name. An existing note is never overwritten.",
                self._add,
                properties={
                    "name": _NAME_ARGUMENT,
                    "text": {"type": "string", "description": "The note.", "maxLength": 100_000},
                },
                required=("name", "text"),
                annotations={
                    "readOnlyHint": False,
                    "destructiveHint": False,
                    "idempotentHint": False,
                },
            ),
            DemoTool(
                "delete",
                "Delete a note",
                "Remove one note for good.",
                self._delete,
                properties={"name": _NAME_ARGUMENT},
                required=("name",),
                annotations={
                    "readOnlyHint": False,
                    "destructiveHint": True,
                    "idempotentHint": False,
                },
            ),
        )

    def _reading_tools(self) -> tuple[DemoTool, ...]:
        return (
            DemoTool(
                "list",
                "List notes",
                "List the names of all notes with their sizes.",
                self._list,
                properties={},
                output={"notes": _list_of({"name": "string", "bytes": "integer"})},
                annotations=_LOOK,
            ),
            DemoTool(
                "read",
                "Read a note",
                "Give the whole text of one note.",
                self._read,
                properties={"name": _NAME_ARGUMENT},
                required=("name",),
                annotations=_LOOK,
            ),
            DemoTool(
                "search",
                "Search notes",
                f"Find a text in names and lines, in any case; the first {_MAX_MATCHES} matches.",
                self._search,
                properties={
                    "text": {"type": "string", "description": "What to look for.", "minLength": 1}
                },
                required=("text",),
                output={
                    "matches": _list_of({"name": "string", "line": "string"}),
                    "total": {"type": "integer", "description": "How many there are in all."},
                },
                annotations=_LOOK,
            ),
        )


_LOOK: Json = {"readOnlyHint": True}
_NAME_ARGUMENT: Json = {
    "type": "string",
    "description": "The note's name: letters, digits, dots, dashes and underscores, at most 64.",
}


def _list_of(fields: dict[str, str]) -> Json:
    properties = {field: {"type": kind} for field, kind in fields.items()}
    item = {"type": "object", "properties": properties, "required": list(fields)}
    return {"type": "array", "items": item}


def _describe(name: str) -> Json:
    return {"uri": _SCHEME + name, "name": name, "title": f"Note {name}", "mimeType": _MIME}


def _check_name(name: str) -> str:
    if _NAME.fullmatch(name):
        return name
    near = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-._")[:64]
    advice = f" How about {near!r}?" if near else ""
    raise ToolError(
        f"{name!r} cannot be a note's name: use letters, digits, dots, dashes and underscores, "
        f"a letter or digit first, 64 at most.{advice}"
    )


def main(argv: list[str]) -> int:
    if len(argv) > 1 or (argv and argv[0].startswith("-")):
        return show_usage("notes", argv, "notes [FOLDER]")
    if not (argv and argv[0]):  # an empty argument is a variable that was not set
        from tempfile import TemporaryDirectory  # late: it costs as much as the rest of the start

        with TemporaryDirectory(prefix="junction-notes-") as path:
            return Notes(Folder(path), "Notes that last as long as this server runs.").serve()
    path = os.path.expanduser(argv[0])
    try:
        os.makedirs(path, exist_ok=True)
        os.listdir(path)
    except OSError as error:
        print(f"notes: cannot use the folder {path}: {error.strerror}", file=sys.stderr)
        return 1
    return Notes(Folder(path), f"Notes kept as text files in {path}.").serve()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
