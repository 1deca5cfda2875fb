#!/bin/sh
# Installs what tests marked `peers` talk to, into .peers/ in the repository root: a venv with the
# PyPI servers and a Node, and .peers/node/ with the npm servers, the TypeScript SDK clients and the
# official conformance suite. Nothing here is part of the program. Run from the repository root; UV
# and PYTHON name the tools (see Makefile).
#
# Leaves .peers/.ready when all is there. When a registry is out of reach it leaves .peers/.skipped
# with the reason instead and ends well, so that whatever needs no peers still runs; the next run
# tries again. Anything else that goes wrong (a bad hash, a missing package) is an error.
# PEERS_REQUIRED=1 makes an unreachable registry an error too.
set -u

: "${UV:?the path of uv}" "${PYTHON:?the path of Python}"
here=$(dirname "$0")
home=.peers
tries=3

# A fresh checkout makes the inputs look new. Only different content is worth a new installation.
want=$(cat requirements-peers.lock "$here/package.json" "$here/package-lock.json" | cksum)
if [ "$(cat "$home/.ready" 2>/dev/null)" = "$want" ]; then
    touch "$home/.ready"
    exit 0
fi

# What uv and npm say when the way to the registry failed, rather than what came from it.
lost_on_the_way='ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|EHOSTUNREACH'
lost_on_the_way="$lost_on_the_way|ERR_SOCKET_TIMEOUT|FETCH_ERROR|network timeout|socket hang up"
lost_on_the_way="$lost_on_the_way|dns error|error sending request|tcp connect error|timed out"
lost_on_the_way="$lost_on_the_way|connection (refused|reset|closed)|error decoding response body"
lost_on_the_way="$lost_on_the_way|code E(429|5[0-9][0-9])|HTTP status server error"

skip() {
    rule='!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!'
    printf '%s\n' "$1" >"$home/.skipped"
    printf '\n%s\nPEERS SKIPPED: %s\n%s\n\n' "$rule" "$1" "$rule" >&2
    [ -z "${PEERS_REQUIRED:-}" ] || exit 1
    echo 'Tests marked "peers" will skip. The next run tries again.' >&2
    exit 0
}

# attempt REGISTRY COMMAND...: a few tries, then skip or fail by what the last one said.
attempt() {
    registry=$1
    shift
    log=$home/install.log
    try=1
    until "$@" >"$log" 2>&1; do
        if [ "$try" -ge "$tries" ]; then
            cat "$log" >&2
            if grep -Eqi "$lost_on_the_way" "$log"; then
                skip "$registry is out of reach ($tries tries)"
            fi
            printf 'peers: installing from %s failed; see above\n' "$registry" >&2
            exit 1
        fi
        printf 'peers: %s: try %s of %s failed, trying again\n' "$registry" "$try" "$tries" >&2
        sleep "$try"
        try=$((try + 1))
    done
}

echo "installing real MCP servers and clients to test against"
rm -rf "$home"
"$UV" venv --quiet --python "$PYTHON" "$home" || exit 1
attempt "the Python package index" \
    "$UV" pip sync --quiet --require-hashes --python "$home/bin/python" requirements-peers.lock

mkdir "$home/node" || exit 1
cp "$here/package.json" "$here/package-lock.json" "$here/.npmrc" "$home/node/" || exit 1
PATH=$PWD/$home/bin:$PATH
npm_config_fetch_retry_mintimeout=1000
npm_config_fetch_retry_maxtimeout=10000
npm_config_loglevel=error
export PATH npm_config_fetch_retry_mintimeout npm_config_fetch_retry_maxtimeout npm_config_loglevel
# One small question first: npm takes minutes to find every one of its requests unanswered.
attempt "the npm registry" npm view @modelcontextprotocol/server-everything name
# None of them needs install scripts, so none are run.
attempt "the npm registry" npm ci --prefix "$home/node" --ignore-scripts --no-progress

for program in conformance mcp-server-everything mcp-server-filesystem mcp-server-memory \
    mcp-server-sequential-thinking; do
    if [ ! -x "$home/node/node_modules/.bin/$program" ]; then
        printf 'peers: npm ci left no %s\n' "$program" >&2
        exit 1
    fi
done
printf '%s\n' "$want" >"$home/.ready"
