"""The pages that we show to people: how they look, and the forms on them.

They have no script and load nothing. Who has shown a key in a browser: ``page_sessions.py``.
"""

from __future__ import annotations

from html import escape
from typing import Any, Final
from urllib.parse import parse_qsl

from mcp_junction.listener.http.host import Receive, Scope, Send

_MAX_BODY: Final = 32_768
PAGE_HEADERS: Final = (
    (b"content-type", b"text/html; charset=utf-8"),
    (b"cache-control", b"no-store"),
    # With no-referrer browsers would post our forms as of the origin null, which is not let in.
    (b"referrer-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'",
    ),
)
_STYLE: Final = """
:root{color-scheme:light dark;--text:#1b1f24;--page:#fff;--soft:#eef0f3;--line:#767d86;--main:#0b57d0;--on:#fff;--bad:#a4161a}
@media(prefers-color-scheme:dark){:root{--text:#e6e8eb;--page:#16191d;--soft:#262b31;--line:#8f98a3;--main:#9cc0ff;--on:#10151c;--bad:#ff9c9c}}
*{box-sizing:border-box}
body{font:16px/1.5 system-ui,sans-serif;color:var(--text);background:var(--page);margin:0}
main{max-width:40rem;margin:0 auto;padding:clamp(1rem,6vh,4rem) 1rem;overflow-wrap:anywhere}
h1{font-size:1.6rem;line-height:1.25;margin:0 0 1rem}
h2{font-size:1.1rem;margin:1.25rem 0 .5rem}pre{margin:0 0 1rem}
code,pre{background:var(--soft);border-radius:.25rem;font:.9em/1.5 ui-monospace,monospace}
code{padding:.1rem .3rem}
pre{padding:.75rem;white-space:pre-wrap}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.25rem 1rem;margin:0 0 1rem}
dt{font-weight:600}dd{margin:0;min-width:0}
label{display:block;font-weight:600;margin:0 0 .25rem}
input,textarea,button{font:inherit;color:inherit;border:1px solid var(--line);border-radius:.375rem;padding:.6rem .8rem}
input,textarea{width:100%;background:var(--page);margin:0 0 1rem}
button{min-height:2.75rem;background:var(--soft);cursor:pointer}
button.main{background:var(--main);border-color:var(--main);color:var(--on);font-weight:600}
:focus-visible{outline:3px solid var(--main);outline-offset:2px}
.row{display:flex;flex-wrap:wrap;gap:.75rem}.row+form,form+form{margin-top:1rem}
.bad{color:var(--bad);font-weight:600}
@media(max-width:30rem){dl{grid-template-columns:1fr}dd{margin:0 0 .5rem}.row button,form>button{flex:1;width:100%}}
""".replace("\n", "")  # noqa: E501 - a style sheet
_HEADINGS: Final = {
    403: "Not for you",
    404: "Not found",
    409: "Too late",
    502: "Signing in has failed",
    503: "Not now",
}

Cookie = tuple[bytes, bytes]


async def read_form(scope: Scope, receive: Receive) -> dict[str, str]:
    """Read the fields of a form that was posted."""
    if scope["method"] != "POST":
        return {}
    exchange: Any = scope.get("exchange")
    if exchange is not None:
        body = (exchange.body or b"")[:_MAX_BODY]
    else:
        message = await receive()
        body = bytes(message.get("body", b""))[:_MAX_BODY]
    return dict(parse_qsl(body.decode("latin-1")))


async def ask_for_key(
    send: Send, title: str, whose: str, issuer: str, why: str, status: int = 401
) -> None:
    """Show the form in which a key is shown; ``whose`` is HTML, ``issuer`` that of tokens."""
    told = f'<p class="bad" role="alert">{escape(why)}</p>' if why else ""
    token, label = "", "Key"
    if issuer:
        token = f", or such an access token of <code>{escape(issuer)}</code>"
        label = "Key or access token"
    body = (
        f"<h1>{escape(title)}</h1>{told}<p>To go on, show {whose} of this gateway{token}.</p>"
        f'<form method="post"><label for="key">{label}</label>'
        '<input type="password" id="key" name="key" autocomplete="off" spellcheck="false"'
        ' required autofocus><button class="main">Go on</button></form>'
    )
    await send_page(send, status if why else 200, body, is_html=True, title=title)


async def send_again(scope: Scope, send: Send, cookies: list[Cookie]) -> None:
    """Have the browser ask for the same page anew, by GET."""
    location = (b"location", b"?" + scope["query_string"])
    await send_body(send, 303, b"", [*PAGE_HEADERS, location, *cookies])


async def send_page(
    send: Send,
    status: int,
    body: str,
    *,
    is_html: bool = False,
    title: str = "",
    more: list[tuple[bytes, bytes]] | None = None,
) -> None:
    """Send a page; what is no HTML is shown as one paragraph under a heading."""
    heading = title or _HEADINGS.get(status, "Junction")
    inner = body if is_html else f"<h1>{heading}</h1><p>{escape(body)}</p>"
    text = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(heading)} – Junction</title><style>{_STYLE}</style></head>"
        f"<body><main>{inner}</main></body></html>"
    )
    await send_body(send, status, text.encode(), [*PAGE_HEADERS, *(more or [])])


async def send_body(
    send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]
) -> None:
    """Send a whole response."""
    headers = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
