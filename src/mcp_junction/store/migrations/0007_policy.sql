-- Who may call what. Rows of agents, grants, tokens and policy_state carry a MAC; a row without a
-- valid one is none. `policy_changes` says in which generation of the topic "policy" something of an
-- agent changed last, also once it is gone; it is a hint for other processes, not a right.

CREATE TABLE agents (
    agent_id TEXT PRIMARY KEY,
    agent_type TEXT NOT NULL,
    declared_tools TEXT NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    created_by TEXT NOT NULL,
    mac BYTEA NOT NULL
);

CREATE TABLE grants (
    id TEXT PRIMARY KEY,
    agent_id TEXT NOT NULL,
    server_id TEXT NOT NULL,
    tool_name TEXT NOT NULL,
    kinds TEXT NOT NULL,
    actions TEXT NOT NULL,
    "when" TEXT NOT NULL,
    limits TEXT,
    token_mode TEXT NOT NULL,
    token_ttl DOUBLE PRECISION NOT NULL,
    expires_at DOUBLE PRECISION,
    granted_at DOUBLE PRECISION NOT NULL,
    granted_by TEXT NOT NULL,
    note TEXT NOT NULL,
    source TEXT NOT NULL,
    version BIGINT NOT NULL,
    mac BYTEA NOT NULL,
    UNIQUE (agent_id, server_id, tool_name, kinds)
);
CREATE INDEX grants_by_server ON grants (server_id);

CREATE TABLE tokens (
    id TEXT PRIMARY KEY,
    grant_id TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    expires_at DOUBLE PRECISION NOT NULL,
    used_at DOUBLE PRECISION,
    revoked_at DOUBLE PRECISION,
    mac BYTEA NOT NULL
);
CREATE INDEX tokens_by_grant ON tokens (grant_id);

CREATE TABLE policy_changes (
    agent_id TEXT PRIMARY KEY,
    generation BIGINT NOT NULL,
    at DOUBLE PRECISION NOT NULL
);
CREATE INDEX policy_changes_by_generation ON policy_changes (generation);

CREATE TABLE policy_state (
    id BIGINT PRIMARY KEY,
    migrated_at DOUBLE PRECISION NOT NULL,
    mac BYTEA NOT NULL
);
