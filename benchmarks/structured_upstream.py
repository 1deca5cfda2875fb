"""upstream.py with one more tool: `records()` answers about 1 MiB of structuredContent.

The name of this file contains "upstream.py" so that procs.py leaves it out of the CPU time.

    python structured_upstream.py
"""

import uvloop
from orjson import dumps

from upstream import Core, make_tools, serve_stdio

MIB = 1 << 20


def record(number):
    """Nested, of mixed types, with escapes and non-ASCII text: what a database tool answers."""
    return {
        "id": f"rec-{number:06d}",
        "title": f"Straße {number} – “näher betrachtet”",
        "active": number % 3 == 0,
        "score": number / 7,
        "owner": {"name": "A. Person", "email": f"person{number % 50}@example.com", "team": None},
        "tags": [f"tag-{number % 11}", f"tag-{number % 13}", "shared"],
        "history": [
            {"at": 1_700_000_000 + number, "event": "created", "by": {"kind": "user", "id": 7}},
            {"at": 1_700_086_400 + number, "event": "changed", "diff": {"from": [1, 2], "to": [3]}},
        ],
        "notes": 'first line\nsecond line, with a "quoted" word\tand a tab',
    }


def records(size):
    """As many records as come nearest to `size` bytes of JSON."""
    return [record(n) for n in range(size // len(dumps(record(1000))))]


RECORDS = {
    "name": "records",
    "description": "Return about 1 MiB of records.",
    "inputSchema": {"type": "object"},
    "outputSchema": {
        "type": "object",
        "properties": {
            "total": {"type": "integer"},
            "records": {"type": "array", "items": {"type": "object"}},
        },
        "required": ["total", "records"],
    },
}


class StructuredCore(Core):
    def __init__(self):
        super().__init__(3)
        self.tools_tail = b',"result":' + dumps({"tools": [*make_tools(3), RECORDS]}) + b"}"
        found = records(MIB)
        result = {
            "content": [{"type": "text", "text": f"{len(found)} records"}],
            "structuredContent": {"total": len(found), "records": found},
            "isError": False,
        }
        self.records_tail = b',"result":' + dumps(result) + b"}"

    def answer(self, msg):
        if msg.get("method") == "tools/call" and msg["params"]["name"] == "records":
            return b'{"jsonrpc":"2.0","id":' + dumps(msg["id"]) + self.records_tail
        return super().answer(msg)


if __name__ == "__main__":
    uvloop.run(serve_stdio(StructuredCore()))
