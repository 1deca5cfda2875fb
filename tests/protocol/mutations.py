"""Frames gone wrong: valid ones with bytes flipped, cut, doubled and spliced."""

import random
from collections.abc import Iterator

SEEDS = [
    b'{"jsonrpc":"2.0","id":1,"method":"ping"}',
    b'{"jsonrpc":"2.0","id":"a","method":"tools/list","params":{"cursor":"WzEsImEiXQ=="}}',
    b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"one:echo","arguments":'
    b'{"text":"h\xc3\xa9llo \\u00e9 \\"[{\\"","n":[1.0,1e5,-0,{"deep":[[[null,true]]]}]},'
    b'"_meta":{"progressToken":"p","x/y":null}}}',
    b'{"method":"tools/call","params":{"name":"two__echo","arguments":{}},"jsonrpc":"2.0","id":3}',
    b'{"jsonrpc":"2.0","id":4,"method":"initialize","params":{"protocolVersion":"2025-06-18",'
    b'"capabilities":{"roots":{}},"clientInfo":{"name":"claude-ai","version":"1"}}}',
    b'{"jsonrpc":"2.0","id":-5,"method":"logging/setLevel","params":{"level":"error"}}',
    b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2,"reason":"x"}}',
    b'{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}',
    b'{"jsonrpc":"2.0","id":"junction-1","result":{"roots":[]}}',
    b'{"jsonrpc":"2.0","id":7,"error":{"code":-32603,"message":"no","data":{"a":1}}}',
    b'[{"jsonrpc":"2.0","id":8,"method":"ping"}]',
]
TOKENS = [
    *(b'"', b"{", b"}", b"[", b"]", b":", b",", b"\\", b"null", b"NaN", b"1e999", b"-", b"0"),
    *(b"\n", b"\r", b"\r\n", b"\0", b"\xff", b"\xed\xa0\x80", b"\xe2\x80\xa8", b"\xef\xbb\xbf"),
    *(b'"id":1,', b'"id":null,', b'"method":"ping",', b'"params":{},', b'"name":"x",', b"[" * 70),
    *(b"\\ud800", b"\\u0069d", b'"result":{},', b"[" * 5000, b"9" * 5000, b'{"a":' * 100, b"//"),
]


def mutated(seed: int, count: int) -> Iterator[bytes]:
    source = random.Random(seed)
    for _ in range(count):
        frame = source.choice(SEEDS)
        for _ in range(source.choice((1, 1, 1, 2, 3, 8))):
            frame = _changed(frame, source)
        yield frame


def _changed(frame: bytes, source: random.Random) -> bytes:
    at = source.randrange(len(frame) + 1)
    end = min(len(frame), at + source.choice((1, 2, 8, 40)))
    match source.randrange(6):
        case 0:
            return frame[:at] + bytes([source.randrange(256)]) + frame[at + 1 :]
        case 1:
            return frame[:at] + frame[end:]
        case 2:
            return frame[:at] + source.choice(TOKENS) + frame[at:]
        case 3:
            return frame[:end] + frame[at:]
        case 4:
            other = source.choice(SEEDS)
            return frame[:at] + other[source.randrange(len(other)) :]
        case _:
            return frame[:at] + source.choice(TOKENS) + frame[end:]
