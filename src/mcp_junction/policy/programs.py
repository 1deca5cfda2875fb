"""Which programs may be run for a registered server.

Registering a stdio server means running a program, so only an admin may do it. An operator can
restrict it further with a list of programs (``stdio_allow``): then nothing else runs, and a
server's environment must not change what runs. Servers of the config file are not checked: whoever
writes that file can run anything anyway.

An allowed interpreter or package runner (``python``, ``npx``) can still run anything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Final

import msgspec

from mcp_junction.config.servers import ServerDefinition

_SHELLS: Final = {
    "sh", "ash", "bash", "csh", "dash", "fish", "ksh", "mksh", "tcsh", "zsh", "busybox", "cmd",
    "powershell", "pwsh",
}  # fmt: skip
_OURS: Final = "MCP_JUNCTION_"
# Variables that make a program load or run other code, or that say where it finds its settings,
# plugins, certificates or daemon.
_RISKY_VARIABLES: Final = re.compile(
    r"PATH|PATHEXT|COMSPEC|SHELL|PROMPT_COMMAND|LD_.*|DYLD_.*|BASH_.*|ENV|IFS|SHELLOPTS|PS4|ZDOTDIR"
    r"|HOME|HOMEDRIVE|HOMEPATH|USERPROFILE|(LOCAL)?APPDATA|XDG_.*|TMPDIR|TMP|TEMP"
    r"|EDITOR|VISUAL|PAGER|BROWSER|LESS(OPEN|CLOSE)"
    r"|PYTHON.*|VIRTUAL_ENV|CONDA_.*|UV_.*|UVX_.*|PIP_.*|PIPX_.*|POETRY_.*"
    r"|NODE_.*|NPM_CONFIG_.*|NPX_.*|YARN_.*|PNPM_.*|BUN_.*|DENO_.*|COREPACK_.*|TS_NODE_.*|ELECTRON_.*"
    r"|PERL5.*|PERLLIB|PERL_.*|RUBY.*|GEM_.*|BUNDLE_.*|PHP.*|COMPOSER_.*|LUA_.*|CARGO_.*|RUST.*|R_.*|JULIA_.*"
    r"|GO(PATH|ROOT|BIN|ENV|FLAGS|PROXY|TOOLCHAIN|PRIVATE|SUMDB|NOSUMDB|INSECURE|DEBUG)"
    r"|(_|JDK_)?JAVA.*|CLASSPATH|MAVEN_.*|GRADLE_.*|DOTNET_.*|CORECLR_.*|COR_.*|MONO_.*"
    r"|DOCKER_.*|CONTAINER_.*|CONTAINERS_.*|PODMAN_.*|BUILDKIT_.*|COMPOSE_.*|KUBE.*|HELM_.*"
    r"|OPENSSL_.*|SSL_.*|SSLKEYLOGFILE|REQUESTS_CA_BUNDLE|CURL_.*|(HTTPS?|ALL|FTP)_PROXY"
    r"|GCONV_PATH|LOCPATH|NLSPATH|HOSTALIASES|RES_OPTIONS|LOCALDOMAIN|RESOLV_.*|NSS_.*|MALLOC_.*"
    r"|GLIBC_TUNABLES|GIT_.*|SSH_.*|GNUPGHOME|KRB5.*|SUDO_.*|SYSTEMROOT|WINDIR",
    re.IGNORECASE,
)


class AllowList(msgspec.Struct, frozen=True):
    """The programs that may be run, by bare name as found on PATH, or by full path."""

    entries: frozenset[str] = frozenset()

    @property
    def is_open(self) -> bool:
        """Whether there is no list, and so no limit."""
        return not self.entries

    def admits(self, command: str, executable: str) -> bool:
        """Whether a command may run, given the file that it was found to be."""
        return executable in self.entries or (_is_bare(command) and command in self.entries)


def parse_allow_list(setting: str) -> AllowList:
    """Parse the setting: names and paths, separated by commas."""
    return AllowList(frozenset(filter(None, (entry.strip() for entry in setting.split(",")))))


def program_refusal(definition: ServerDefinition, allow: AllowList, executable: str) -> str | None:
    """Say why a program may not be run; None when it may. ``executable`` is the file it is."""
    if not allow.is_open and not allow.admits(definition.command, executable):
        return "its command is not among those that stdio_allow names"
    names = {_stem(definition.command), _stem(executable)}
    if allow.is_open and names & _SHELLS:
        return "its command is a shell; name the program itself, or the shell in stdio_allow"
    return (
        _command_refusal(definition.command)
        or _cwd_refusal(definition.cwd)
        or _env_refusal(definition.env, strict=not allow.is_open)
    )


def _command_refusal(command: str) -> str | None:
    if not _is_bare(command) and not PurePath(command).is_absolute():
        return "its command must be a name to be found on PATH, or a full path"
    if ".." in PurePath(command).parts:
        return "its command must not go up with '..'"
    return None


def _cwd_refusal(cwd: str | None) -> str | None:
    if cwd is None:
        return None
    if not PurePath(cwd).is_absolute() or ".." in PurePath(cwd).parts:
        return "its cwd must be a full path without '..'"
    return None


def _env_refusal(env: Mapping[str, str], *, strict: bool) -> str | None:
    for name in env:
        if name.upper().startswith(_OURS):
            return f"its env must not set {_OURS}… variables: they are Junction's own"
        if strict and _RISKY_VARIABLES.fullmatch(name):
            return f"its env must not set {name} while stdio_allow limits what may run"
    return None


def _is_bare(command: str) -> bool:
    return "/" not in command and "\\" not in command


def _stem(command: str) -> str:
    return re.split(r"[/\\]", command)[-1].lower().removesuffix(".exe")
