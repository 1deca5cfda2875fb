"""All errors that Junction raises on purpose, in one tree.

    JunctionError
    ├── ConfigError        a config file that cannot be used; carries every Problem found
    ├── FrameError         bytes that are not an acceptable frame; carries a JSON-RPC code
    ├── CursorError        a list cursor that is not ours, or no longer valid
    ├── RequestStateError  a requestState that is not ours, not the caller's, or has expired
    ├── ArgumentsError     arguments of a call that parsers could read differently
    ├── ConditionError     a condition of a grant that cannot be used; says where
    ├── AddressRefused     an address that the rules do not let us connect to
    ├── ServerError        an upstream server failed; carries the phase, exit code and stderr tail
    │   ├── EraError       it does not speak the required era of the protocol
    │   └── CircularError  it is a Junction that leads back to this one
    ├── StoreError         the store refused or failed
    │   ├── StoreUnavailable   it cannot be reached, or cannot write now
    │   ├── UnreadableRow      a row is damaged, or has a wrong type
    │   ├── NotFound           there is no such record
    │   ├── AlreadyExists      a record of that name is there already
    │   └── VersionConflict    someone else changed the record first
    │       └── DefinitionChanged  a tool's definition changed since it was read
    ├── InvalidChange      a registration, or change of one, is invalid; carries every Problem found
    ├── FileOwned          the server is the config file's: it is changed there
    ├── AlreadyDecided     a request for approval that nobody can decide about any more
    ├── NotPermitted       a principal may not make this change, though its role may make others
    ├── ModelUnavailable   the model of skills cannot compute now; its jobs are retried
    ├── VectorStoreError   the vector store cannot be used now
    ├── VaultError         a sealed value, or the key to it, cannot be used
    │   └── MissingKey     it was sealed with a key that is not here
    ├── OAuthError         a step of OAuth failed; carries the step, the host and OAuth's own code
    ├── TokenRefused       an access token that the door does not accept; carries the reason
    │   └── ScopesMissing  one that is good, but lacks scopes that the door requires
    ├── IssuerUnavailable  the keys to verify access tokens with cannot be read now
    ├── MaskError          a mask was sent where no kept value can take its place
    ├── RequestError       a REST request that ends in an error answer; carries its code
    └── UsageError         a command was called with something it cannot work with

A *call* that fails does not raise: it ends in an ``Outcome`` (``upstream/outcome.py``), because a
failure is an answer and goes back the same way as a result.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import NamedTuple


class JunctionError(Exception):
    """Base of every error raised on purpose."""


class ProblemCode(StrEnum):
    """What kind of thing is wrong with a config file."""

    FILE_NOT_FOUND = "file_not_found"
    INVALID_JSON = "invalid_json"
    INVALID_SCHEMA = "invalid_schema"
    MISSING_ENV_VAR = "missing_env_var"


class Problem(NamedTuple):
    """One thing that is wrong in a config file, and where. Never holds a value of the file."""

    code: ProblemCode
    path: str
    message: str
    variable: str | None = None

    def __str__(self) -> str:
        return f"[{self.code}] {self.path}: {self.message}"


def invalid_at(path: str, message: str) -> Problem:
    """Return the problem that a value is of the wrong type, or makes no sense."""
    return Problem(ProblemCode.INVALID_SCHEMA, path, message)


class ConfigError(JunctionError):
    """A config file cannot be used. All its problems are reported together."""

    def __init__(self, source: str, problems: list[Problem]) -> None:
        self.source = source
        self.problems = problems
        lines = "\n".join(f"  {problem}" for problem in problems)
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__(f"{source}: {count}\n{lines}")

    @property
    def code(self) -> ProblemCode:
        return self.problems[0].code


class FrameError(JunctionError):
    """Bytes that are not an acceptable JSON-RPC frame."""

    def __init__(self, code: int, message: str, frame_id: bytes | None = None) -> None:
        self.code = code
        self.message = message
        self.frame_id = frame_id
        super().__init__(message)


class CursorError(JunctionError):
    """A list cursor that is not ours, or no longer valid."""


class RequestStateError(JunctionError):
    """A requestState that is not ours, not the caller's, or has expired."""


class ArgumentsError(JunctionError):
    """Arguments of a call can be read in more than one way, or not at all; says what to change."""


class ConditionError(JunctionError):
    """A condition of a grant cannot be used, because of what stands ``at`` a character of it."""

    def __init__(self, at: int, message: str) -> None:
        self.at = at
        super().__init__(f"at character {at + 1}: {message}")


class AddressRefused(JunctionError):
    """An address that the rules do not let us connect to; says why, never the address."""


class Phase(StrEnum):
    """The phase in which a server failed."""

    STARTUP = "startup"
    INITIALIZATION = "initialization"
    RUNTIME = "runtime"


class ServerError(JunctionError):
    """An upstream server failed; says what a person needs to repair it."""

    def __init__(
        self,
        server: str,
        phase: Phase,
        message: str,
        *,
        exit_code: int | None = None,
        stderr_tail: str = "",
        refuses_credentials: bool = False,
    ) -> None:
        self.server = server
        self.phase = phase
        self.message = message
        self.exit_code = exit_code
        self.stderr_tail = stderr_tail
        self.refuses_credentials = refuses_credentials
        super().__init__(f"server {server!r} failed during {phase}: {message}")

    def with_message(self, message: str, stderr_tail: str) -> ServerError:
        """Make a copy with another message and stderr tail."""
        return type(self)(
            self.server,
            self.phase,
            message,
            exit_code=self.exit_code,
            stderr_tail=stderr_tail,
            refuses_credentials=self.refuses_credentials,
        )

    @property
    def report(self) -> str:
        """The message with the end of the server's stderr."""
        tail = [f"    {line}" for line in self.stderr_tail.strip().splitlines()[-20:]]
        return "\n".join([str(self), "  its stderr ends with:", *tail] if tail else [str(self)])


class EraError(ServerError):
    """An upstream server does not speak the required era of the protocol."""


class CircularError(ServerError):
    """A server is a Junction that leads back to this one."""


def circular_error(server: str) -> CircularError:
    """Return the error for a server that is, or leads back to, this Junction."""
    words = (
        "circular reference: it is, or leads back to, this very Junction;"
        " remove it here, or the entry that leads back from one of those behind it"
    )
    return CircularError(server, Phase.INITIALIZATION, words)


class StoreError(JunctionError):
    """The store refused or failed. Never holds a value of a record, only names and ids."""


class StoreUnavailable(StoreError):
    """The store cannot be reached or cannot write now; trying again later may help.

    A write that ends so was not made, unless the link to the database was lost while it was being
    committed: then nobody knows.
    """


class UnreadableRow(StoreError):
    """A row of the store is damaged, or has a wrong type."""


class NotFound(StoreError):
    """There is no such record."""


class AlreadyExists(StoreError):
    """A record of that name is there already."""


class VersionConflict(StoreError):
    """The record is no longer the one that was read: someone else changed it first."""

    def __init__(self, what: str, found: int) -> None:
        self.found = found
        super().__init__(f"{what} was changed in the meantime; read it again")


class DefinitionChanged(VersionConflict):
    """A tool's definition has changed since it was read."""

    def __init__(self, current: str) -> None:
        self.current = current
        """The hash of the definition that it has now."""
        super().__init__("the tool", 0)
        self.args = (
            "the tool's definition has changed again; read its changes, and give its new hash",
        )


class InvalidChange(JunctionError):
    """A registration, or a change of one, that makes no sense or is not allowed."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("; ".join(f"{problem.path} {problem.message}" for problem in problems))


class FileOwned(JunctionError):
    """The server comes from the config file, and is changed there."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the server {name!r} is the config file's; change it there")


class NotPermitted(JunctionError):
    """A principal may not make this change, though its role may make others; says why."""


class AlreadyDecided(JunctionError):
    """Nobody can decide about a request for approval any more; says what it is."""


class ModelUnavailable(JunctionError):
    """The model of skills cannot compute now; its jobs are retried."""


class VectorStoreError(JunctionError):
    """The vector store cannot be used now; vectors in memory are searched instead."""


class TokenRefused(JunctionError):
    """An access token that the door does not accept. Never quotes the token."""

    def __init__(self, reason: str, detail: str) -> None:
        self.reason = reason
        """One word: expired, audience, issuer, signature, revoked or malformed."""
        super().__init__(f"{reason}: {detail}")


class ScopesMissing(TokenRefused):
    """An access token that is good, but lacks scopes that the door requires of all."""

    def __init__(self, needed: Collection[str], held: Collection[str]) -> None:
        self.scopes = tuple(dict.fromkeys((*needed, *held)))
        """What a token must be asked for: what is needed, and what this one has already."""
        super().__init__("scope", f"it lacks a scope that is needed here: {' '.join(needed)}")


class IssuerUnavailable(JunctionError):
    """The keys to verify access tokens with cannot be read now."""


class VaultError(JunctionError):
    """A sealed value, or the key to it, cannot be used. Never holds either."""


class MissingKey(VaultError):
    """A value was sealed with a key that is not here. The message holds neither of them."""


class OAuthError(JunctionError):
    """A step of OAuth failed; names the step and the host, never a code, state or token."""

    def __init__(
        self, step: str, host: str, reason: str, code: str = "", status: int | None = None
    ) -> None:
        self.step = step
        self.host = host
        self.reason = reason
        self.code = code
        """OAuth's own code of the error, where there is one."""
        self.status = status
        """The HTTP status of the answer, where there was one."""
        super().__init__(f"{step} at {host}: {reason}")


class MaskError(JunctionError):
    """A mask was sent where no kept value can take its place; says what to send instead."""


class RequestError(JunctionError):
    """A REST request ends in an error answer. Which HTTP status a code means, ``api`` knows."""

    def __init__(
        self,
        code: str,
        detail: str,
        context: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.code = code
        self.detail = detail
        self.context = dict(context or {})
        self.headers = dict(headers or {})
        super().__init__(detail)


class UsageError(JunctionError):
    """A command was called with something it cannot work with."""
