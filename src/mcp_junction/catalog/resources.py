"""ResourceView: resources and templates by their URIs, and the URIs inside other items.

Where two servers have the same URI, one of them is shown under another; what refers to it
(``_meta`` of tools, results of ``resources/read``) is rewritten to match.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec import Raw

from mcp_junction.catalog.items import (
    RESOURCES,
    TEMPLATES,
    ListItem,
    ListKind,
    Route,
    ServerLists,
    timeout_for,
)
from mcp_junction.catalog.name_history import URIS, NameHistories, NameHistory
from mcp_junction.catalog.roll import Roll, bits_of
from mcp_junction.catalog.scope import Scope
from mcp_junction.protocol import encode, frames
from mcp_junction.protocol.merged_list import MergedList, PageCache
from mcp_junction.protocol.names import Pair
from mcp_junction.upstream.upstream import Upstream

_OBJECT = "ui"
_MEMBER = "resourceUri"
_FLAT = "ui/resourceUri"
_contents = msgspec.json.Decoder(list[dict[str, Raw]])


def rewrite_references(meta: Raw, server: str, apart: Mapping[Pair, str]) -> Raw:
    """``_meta`` of one of a server's tools, with addresses as they are listed."""
    found = frames.object_members(meta)
    shown = frames.object_members(found.get(_OBJECT))
    flat = _listed(found.get(_FLAT), server, apart)
    nested = _listed(shown.get(_MEMBER), server, apart)
    if flat is None and nested is None:
        return meta
    if flat is not None:
        found[_FLAT] = flat
    if nested is not None:
        found[_OBJECT] = Raw(encode.dumps({**shown, _MEMBER: nested}))
    return Raw(encode.dumps(found))


def rewrite_contents(payload: Raw | bytes, own: str, known: str) -> Raw | bytes:
    """The result of reading a resource, which its server calls its own way, as callers know it."""
    found = frames.object_members(payload)
    try:
        contents = _contents.decode(found.get("contents") or b"")
    except msgspec.MsgspecError:
        return payload
    for content in contents:
        if frames.text(content.get("uri")) == own:
            content["uri"] = Raw(encode.dumps(known))
    found["contents"] = Raw(encode.dumps(contents))
    return encode.dumps(found)


def _listed(raw: Raw | None, server: str, apart: Mapping[Pair, str]) -> Raw | None:
    """The address that a resource is listed under, where that is another."""
    listed = apart.get(Pair(server, frames.text(raw) or ""))
    return Raw(encode.dumps(listed)) if listed is not None else None


_EXPRESSION = re.compile(r"\{([+#./;?&]?)[^{}]*\}")
_NOT_SCHEME = re.compile(r"[^A-Za-z0-9.-]")
_SEGMENT_ENDS = "/?#"
_BEGINNINGS = {"#": "#", ".": ".", "/": "/", ";": ";", "?": "?", "&": "?&"}


class Template(NamedTuple):
    """A URI template, cut at its expressions: their operators, and what stands between them."""

    literals: tuple[str, ...]
    operators: tuple[str, ...]

    @property
    def has_scheme(self) -> bool:
        """Whether it is of one scheme, and does not stand for addresses of any."""
        return ":" in self.literals[0]

    def matches(self, uri: str) -> bool:
        """Whether ``uri`` can be an expansion of it. Takes time in proportion to its length."""
        if not uri.startswith(self.literals[0]):
            return False
        at = len(self.literals[0])
        last = len(self.operators)
        for number, operator in enumerate(self.operators, 1):
            literal = self.literals[number]
            if number < last:
                end = uri.find(literal, at)
            else:
                end = len(uri) - len(literal) if uri.endswith(literal) else -1
            if end < at or not _can_be(operator, uri[at:end]):
                return False
            at = end + len(literal)
        return at == len(uri)


def parse_template(text: str) -> Template:
    pieces = _EXPRESSION.split(text)  # literal, operator, literal, operator, …, literal
    return Template(tuple(pieces[::2]), tuple(pieces[1::2]))


def _can_be(operator: str, value: str) -> bool:
    """Whether an expression with this operator can stand for ``value``."""
    if operator == "":
        return not any(char in value for char in _SEGMENT_ENDS)
    return operator == "+" or not value or value[0] in _BEGINNINGS[operator]


class TemplateOwners:
    """Whose template was the first to stand for an address; those that have no scheme, and stand
    for all, do not count. For many addresses: it looks at those only that begin as one does."""

    def __init__(self, templates: Iterable[tuple[str, Pair]]) -> None:
        self._by_beginning: dict[str, list[tuple[int, str, Template]]] = {}
        for place, (text, pair) in enumerate(templates):
            template = parse_template(text)
            if template.has_scheme:
                same = self._by_beginning.setdefault(template.literals[0], [])
                same.append((place, pair.server, template))
        self._lengths = sorted({len(beginning) for beginning in self._by_beginning})

    def belongs_to_other_server(self, pair: Pair) -> bool:
        """Whether the first template that an address fits is another server's."""
        uri = pair.name
        fitting = (
            (place, server)
            for length in self._lengths
            for place, server, template in self._by_beginning.get(uri[:length], ())
            if template.matches(uri)
        )
        first = min(fitting, default=None)
        return first is not None and first[1] != pair.server


class _Listed(NamedTuple):
    """A template as it is listed: whose it is, and how much of its text is our addition."""

    template: Template
    upstream: Upstream
    added: int


class _Addresses:
    """The address that each item of one list is shown under."""

    def __init__(self, kind: ListKind, roll: Roll, history: NameHistory) -> None:
        self.kind = kind
        self.history = history
        self.items: dict[str, bytes] = {}
        """What is listed, by address."""
        self._roll = roll
        self._owners: dict[str, int] = {}

    def assign(self, pair: Pair, by_template: TemplateOwners | None = None) -> str:
        """The address of a pair: the one it was shown under, or its own, or, if that is another
        server's or covered by a template of another's, one that the server's key tells apart."""
        number = self._roll.add(pair)
        address = self.history.name_of(number)
        if address is None:
            address = pair.name
            is_covered = by_template is not None and by_template.belongs_to_other_server(pair)
            if is_covered or self._is_taken(address):
                address = f"{_NOT_SCHEME.sub('-', pair.server)}+{address}"
            while self._is_taken(address):
                address = f"x-{address}"
        self._owners[address] = number
        return address

    def show(self, offer: ListItem, address: str) -> None:
        """List an item under its address."""
        members = offer.members
        if address != offer.name:
            members = {**members, self.kind.key: Raw(encode.dumps(address))}
        self.items[address] = encode.dumps(members)

    def _is_taken(self, address: str) -> bool:
        return address in self._owners or self.history.owner(address) is not None

    def pair_shown_as(self, address: str) -> Pair | None:
        """Whose an address was when it was shown."""
        owner = self.history.owner(address)
        return None if owner is None else self._roll.pairs[owner]

    def note(self) -> None:
        """Remember that all of them were shown."""
        pairs = self._roll.pairs
        names = {n: address for address, n in self._owners.items() if pairs[n].name != address}
        shown = bits_of(self._owners.values())
        self.history.note(shown, names, shown)


class ResourceView:
    """Where an address leads, and both lists as bytes, in one Scope."""

    def __init__(
        self,
        scope: Scope,
        known: Sequence[ServerLists],
        present: Container[str],
        names: NameHistories,
        *,
        timeout: float,
        page_size: int,
        pages: PageCache,
        is_alone: bool = False,
    ) -> None:
        self.scope = scope
        self.is_noted = False
        """Whether its addresses are remembered as shown."""
        self._page_size = page_size
        self._pages = pages
        self._page_key = object()
        self._timeout = timeout
        self._alone = known[0].upstream if is_alone and len(known) == 1 else None
        self._routes: dict[str, Route] = {}
        self._templates: dict[str, _Listed] = {}
        self._schemes: dict[str, dict[str, Upstream]] = {}
        self.apart: dict[Pair, str] = {}
        """The resources that are listed under another address than their server's own."""
        self._resources, self._shown_templates = (
            _Addresses(kind, names.roll(kind, URIS), names.of(scope, URIS, kind))
            for kind in (RESOURCES, TEMPLATES)
        )
        by_template = TemplateOwners(self._shown_templates.history.items())
        for offering in known:
            upstream = offering.upstream
            is_present = upstream.key in present
            for offer in self._admit(offering, RESOURCES):
                self._add(upstream, offer, is_present, by_template)
            for offer in self._admit(offering, TEMPLATES):
                self._add_template(upstream, offer, is_present)

    def _admit(self, offering: ServerLists, kind: ListKind) -> Iterator[ListItem]:
        admits = self.scope.of(kind, offering.upstream.key)
        return (offer for offer in offering.of(kind) if admits is not None and admits(offer.name))

    @property
    def items(self) -> MergedList:
        """The list of resources, for clients to see."""
        return self._list(self._resources)

    @property
    def templates(self) -> MergedList:
        """The list of templates, for clients to see."""
        return self._list(self._shown_templates)

    def _list(self, addresses: _Addresses) -> MergedList:
        texts, items = list(addresses.items), list(addresses.items.values())

        def load() -> tuple[list[str], Callable[[int, int], Iterable[bytes]]]:
            return texts, lambda start, end: items[start:end]

        member = addresses.kind.member
        return MergedList(member, load, self._pages, self._page_key, self._page_size)

    def note(self) -> None:
        """Remember that these addresses were shown."""
        self._resources.note()
        self._shown_templates.note()

    def find(self, uri: str) -> Route | None:
        """The route of an address, listed or not; None when no one server can be named.

        The server may have left.
        """
        found = self._routes.get(uri)
        if found is not None:
            return found
        guessed = self._guess(uri)
        if guessed is None or not self.scope.admits(RESOURCES, guessed.pair):
            return None
        owner = self._resources.pair_shown_as(uri)
        return guessed if owner in (None, guessed.pair) else None

    def _by_scheme(self, uri: str) -> Route | None:
        """The route of an address whose scheme one server has, and only one."""
        owner = self._only(self._schemes.get(_scheme(uri), {}).values()) or self._alone
        return self._route(owner, uri) if owner is not None else None

    def _guess(self, uri: str) -> Route | None:
        """The route of an address that nobody lists."""
        fitting = [listed for listed in self._templates.values() if listed.template.matches(uri)]
        closely = [listed for listed in fitting if listed.template.has_scheme]
        found = self._match_templates(uri, closely) or self._by_scheme(uri)
        return found if found is not None or closely else self._match_templates(uri, fitting)

    def _match_templates(self, uri: str, found: list[_Listed]) -> Route | None:
        """The route of an address that the templates of one server, and only one, stand for."""
        owner = self._only(listed.upstream for listed in found)
        return self._route(owner, uri[found[0].added :]) if owner is not None else None

    def find_template(self, template: str) -> Route | None:
        """The route of a template as it is listed, or of an address."""
        listed = self._templates.get(template)
        if listed is None:
            return self.find(template)
        return self._route(listed.upstream, template[listed.added :])

    @staticmethod
    def _only(owners: Iterable[Upstream]) -> Upstream | None:
        found = {owner.key: owner for owner in owners}
        return next(iter(found.values())) if len(found) == 1 else None

    def _add(
        self, upstream: Upstream, offer: ListItem, is_present: bool, by_template: TemplateOwners
    ) -> None:
        self._note_scheme(offer.name, upstream)
        pair = Pair(upstream.key, offer.name)
        uri = self._resources.assign(pair, by_template)
        self._routes[uri] = self._route(upstream, offer.name, offer.members["uri"])
        if uri != offer.name:
            self.apart[pair] = uri
        if is_present:
            self._resources.show(offer, uri)

    def _add_template(self, upstream: Upstream, offer: ListItem, is_present: bool) -> None:
        self._note_scheme(offer.name, upstream)
        text = self._shown_templates.assign(Pair(upstream.key, offer.name))
        added = len(text) - len(offer.name)
        self._templates[text] = _Listed(parse_template(text), upstream, added)
        if is_present:
            self._shown_templates.show(offer, text)

    def _note_scheme(self, uri: str, upstream: Upstream) -> None:
        self._schemes.setdefault(_scheme(uri), {})[upstream.key] = upstream

    def _route(self, upstream: Upstream, uri: str, raw: Raw | None = None) -> Route:
        pair = Pair(upstream.key, uri)
        written = raw if raw is not None else Raw(encode.dumps(uri))
        timeout = timeout_for(upstream, self._timeout)
        return Route(upstream, pair, f"{upstream.key} {uri}", written, timeout)


def _scheme(uri: str) -> str:
    return uri.partition(":")[0].lower()
