"""``/api/v1/aggregator/servers/{server_id}/auth``: signing in to servers, keys of agents, sign-out.

An administrator may do it for all, an agent for itself, where each agent has its own credential.
"""

from __future__ import annotations

import time
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from mcp_junction.api.conventions import (
    AnyRequest,
    Context,
    ServerRef,
    caller,
    error_responses,
)
from mcp_junction.api.errors import field_error
from mcp_junction.api.models import CredentialFacts, credential_model, format_time
from mcp_junction.api.rights import Right, needs
from mcp_junction.catalog.endpoints import EVERYTHING
from mcp_junction.config.servers import ServerDefinition
from mcp_junction.credentials.credentials import server_id_of
from mcp_junction.credentials.kinds import StoredSource
from mcp_junction.credentials.sign_ins import is_loopback_redirect
from mcp_junction.credentials.subjects import agent_subject
from mcp_junction.errors import NotFound, RequestError
from mcp_junction.oauth.sign_in import read_callback
from mcp_junction.policy.principal import Principal, Role
from mcp_junction.store.credentials import LoginRecord
from mcp_junction.web.routing import PathParameter, QueryParameter, Router, delete, get, post, put

AgentId = Annotated[str, Meta(min_length=1, max_length=200)]
Agent = Annotated[
    str | None, QueryParameter(max_length=200, description="The agent whose own it is.")
]
LoginId = Annotated[str, PathParameter(max_length=100)]


class ForAgent(msgspec.Struct, forbid_unknown_fields=True):
    """Whose credential it is about: an agent's own, or the one that all share."""

    agent: AgentId | None = None


class LoginRequest(ForAgent, forbid_unknown_fields=True):
    """A sign-in to begin. With a ``redirect_uri`` the caller takes the answer, and completes it."""

    redirect_uri: Annotated[str, Meta(max_length=2_000)] | None = None


class LoginAnswer(msgspec.Struct, forbid_unknown_fields=True):
    """The address at which the browser ended, as it is."""

    callback_url: Annotated[str, Meta(min_length=1, max_length=16_000)]


class AgentKey(ForAgent, forbid_unknown_fields=True, kw_only=True):
    """A key that a server has given to an agent, or to all."""

    value: Annotated[str, Meta(min_length=1, max_length=16_000)]


class Login(msgspec.Struct):
    """A sign-in under way: where to open it, and until when."""

    login_id: str
    url: str
    expires_at: str | None


class LoginState(msgspec.Struct):
    """How a sign-in stands: open, completed, refused or expired."""

    login_id: str
    status: str
    reason: str | None


class ServerCredentials(msgspec.Struct):
    """The credentials for a server that the caller may know of."""

    items: list[CredentialFacts]


_NOT_INTERACTIVE = "nobody signs in to this server: it has another kind of auth, or none"


def _own(body: type[Any] | None = None) -> dict[str, Any]:
    return needs(Right.CHANGE_SERVERS, body, or_only=Right.SIGN_IN_ITSELF)


def _definition(context: Context, principal: Principal, ref: str) -> ServerDefinition:
    """Find a server that exists for the caller. Raises NotFound."""
    name = context.registry.find(ref).name
    server = context.junction.servers[name]
    if principal.role not in (Role.ADMIN, Role.OWNER):
        scope = context.junction.scopes.of(principal, EVERYTHING)
        if not context.junction.snapshot.catalog.has_server(scope, name):
            raise NotFound(f"there is no server {ref!r}")
    return server.definition


def _find(request: AnyRequest, context: Context, ref: str, agent: str | None) -> StoredSource:
    """Find the credential that a request is about, if its caller may change it.

    Raises NotFound, RequestError, NotPermitted.
    """
    principal, sign_ins = caller(request), context.sign_ins
    definition = _definition(context, principal, ref)
    if agent is None and principal.role is Role.AGENT and definition.is_per_agent:
        agent = principal.id
    if agent is not None:  # before anything is kept for it
        sign_ins.check_allowed(principal, agent_subject(agent))
    source = sign_ins.find_source(definition, agent)
    if source is None:
        raise RequestError("NOT_INTERACTIVE", _NOT_INTERACTIVE)
    sign_ins.check_allowed(principal, source.subject)
    return source


async def _login(request: AnyRequest, context: Context, ref: str, login_id: str) -> LoginRecord:
    """Read a sign-in to a server that the caller may know of. Raises NotFound."""
    definition = _definition(context, caller(request), ref)
    record = await (await context.sign_ins.logins()).find(login_id)
    if record.server_id != server_id_of(definition):
        raise NotFound("there is no such sign-in; begin it again")
    context.sign_ins.check_allowed(caller(request), record.subject)
    return record


@get(
    opt=_own(),
    responses=error_responses("SERVER_NOT_FOUND"),
    summary="Show who is signed in to a server",
)
async def show_auth(
    request: AnyRequest, context: Context, server_id: ServerRef
) -> ServerCredentials:
    principal = caller(request)
    definition = _definition(context, principal, server_id)
    found = context.credentials.sources_of(definition)
    if principal.role is Role.AGENT:
        found = [one for one in found if one.subject == f"agent:{principal.id}"]
    shown = [credential_model(one.facts) for one in found]
    return ServerCredentials([one for one in shown if one is not None])


@post(
    "/login",
    opt=_own(LoginRequest),
    responses=error_responses(
        "SERVER_NOT_FOUND", "NOT_INTERACTIVE", "SIGN_IN_FAILED", has_body=True
    ),
    summary="Begin to sign in",
    description="Open `url` in a browser. Without `redirect_uri` it is a page of ours, which"
    " lets only the person go on that it was made for.",
)
async def begin_login(
    request: AnyRequest, context: Context, server_id: ServerRef, body: LoginRequest
) -> Login:
    if body.redirect_uri is not None and not is_loopback_redirect(body.redirect_uri):
        raise field_error("redirect_uri", "must be an http address of the loopback interface")
    source = _find(request, context, server_id, body.agent)
    try:
        started = await context.sign_ins.begin(source, caller(request), body.redirect_uri)
    except ValueError as error:
        raise RequestError("NOT_INTERACTIVE", str(error)) from None
    url = started.authorization_url
    if body.redirect_uri is None:
        url = f"{context.credentials.public_url}/oauth/start/{started.id}"
    return Login(started.id, url, format_time(started.expires_at))


@get(
    "/logins/{login_id:str}",
    opt=_own(),
    responses=error_responses("SERVER_NOT_FOUND"),
    summary="Show how a sign-in stands",
)
async def show_login(
    request: AnyRequest, context: Context, server_id: ServerRef, login_id: LoginId
) -> LoginState:
    record = await _login(request, context, server_id, login_id)
    is_late = record.status == "open" and record.expires_at < time.time()
    return LoginState(record.id, "expired" if is_late else record.status, record.reason or None)


@post(
    "/logins/{login_id:str}/complete",
    status_code=200,
    opt=_own(LoginAnswer),
    responses=error_responses("SERVER_NOT_FOUND", "SIGN_IN_FAILED", has_body=True),
    summary="Complete a sign-in with the address at which the browser ended",
)
async def complete_login(
    request: AnyRequest,
    context: Context,
    server_id: ServerRef,
    login_id: LoginId,
    body: LoginAnswer,
) -> LoginState:
    record = await _login(request, context, server_id, login_id)
    query = urlsplit(body.callback_url).query
    logins = await context.sign_ins.logins()
    if (await logins.find_by_state(read_callback(query).get("state", ""))).id != record.id:
        raise field_error("callback_url", "is of another sign-in")
    await context.sign_ins.finish(record, query, caller(request).id)
    return LoginState(record.id, "completed", None)


@post(
    "/refresh",
    status_code=200,
    opt=_own(ForAgent),
    responses=error_responses("SERVER_NOT_FOUND", "NOT_INTERACTIVE", has_body=True),
    summary="Renew a credential now",
)
async def refresh_auth(
    request: AnyRequest, context: Context, server_id: ServerRef, body: ForAgent
) -> CredentialFacts | None:
    source = _find(request, context, server_id, body.agent)
    await source.refresh_now()
    return credential_model(source.facts)


@put(
    "/key",
    status_code=200,
    opt=_own(AgentKey),
    responses=error_responses("SERVER_NOT_FOUND", "NOT_INTERACTIVE", has_body=True),
    summary="Give the key that an agent sends to a server",
)
async def set_key(
    request: AnyRequest, context: Context, server_id: ServerRef, body: AgentKey
) -> CredentialFacts | None:
    source = _find(request, context, server_id, body.agent)
    try:
        await context.credentials.set_key(source, body.value)
    except ValueError as error:
        raise field_error("value", str(error)) from None
    context.credentials.note(source, "key_set", "", caller(request).id)
    return credential_model(source.facts)


@delete(
    opt=_own(),
    responses=error_responses("SERVER_NOT_FOUND", "NOT_INTERACTIVE"),
    summary="Sign out of a server",
    description="Its issuer is asked to revoke the tokens, too.",
)
async def sign_out(
    request: AnyRequest, context: Context, server_id: ServerRef, agent: Agent = None
) -> None:
    source = _find(request, context, server_id, agent)
    await context.credentials.log_out(source)
    context.credentials.note(source, "logout", "", caller(request).id)


ROUTES = Router(
    "/api/v1/aggregator/servers/{server_id:str}/auth",
    route_handlers=[
        show_auth,
        begin_login,
        show_login,
        complete_login,
        refresh_auth,
        set_key,
        sign_out,
    ],
    tags=["servers"],
)
