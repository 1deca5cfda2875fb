-- Times are seconds since 1970. JSON that we only pass on is text; definitions are the server's
-- own bytes. Ids are UUIDs as text. Grants and policies will refer to servers by id.

CREATE TABLE counters (
    topic TEXT PRIMARY KEY,
    value BIGINT NOT NULL
);

CREATE TABLE servers (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    description TEXT NOT NULL,
    transport_type TEXT NOT NULL,
    connection_config BYTEA NOT NULL,
    health_check_url TEXT,
    enabled BOOLEAN NOT NULL,
    origin TEXT NOT NULL,
    isolation TEXT NOT NULL,
    pin TEXT NOT NULL,
    trust_annotations BOOLEAN NOT NULL,
    allow_private BOOLEAN NOT NULL,
    allow_http BOOLEAN NOT NULL,
    timeout_ms BIGINT,
    server_version TEXT,
    capabilities TEXT NOT NULL,
    version BIGINT NOT NULL,
    registered_at DOUBLE PRECISION NOT NULL,
    updated_at DOUBLE PRECISION NOT NULL,
    status TEXT NOT NULL,
    reachable BOOLEAN,
    authenticated BOOLEAN,
    healthy BOOLEAN,
    last_health_check DOUBLE PRECISION,
    response_time_ms DOUBLE PRECISION,
    error_rate DOUBLE PRECISION,
    error_message TEXT,
    connected_at DOUBLE PRECISION,
    tool_count BIGINT NOT NULL
);
CREATE INDEX servers_by_status ON servers (status);

CREATE TABLE tools (
    id TEXT PRIMARY KEY,
    server_id TEXT NOT NULL REFERENCES servers (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    position BIGINT NOT NULL,
    definition BYTEA NOT NULL,
    hash TEXT NOT NULL,
    pinned_hash TEXT NOT NULL,
    pinned_definition BYTEA,
    quarantined BOOLEAN NOT NULL,
    enabled BOOLEAN NOT NULL,
    risk TEXT,
    read_only BOOLEAN,
    idempotent BOOLEAN,
    timeout_ms BIGINT,
    fallbacks TEXT NOT NULL,
    tool_version TEXT,
    versions TEXT,
    flags TEXT NOT NULL,
    skill_ids TEXT NOT NULL,
    primary_skill_id TEXT,
    is_classified BOOLEAN NOT NULL,
    first_seen_at DOUBLE PRECISION NOT NULL,
    updated_at DOUBLE PRECISION NOT NULL,
    gone_at DOUBLE PRECISION,
    UNIQUE (server_id, name)
);

CREATE TABLE offers (
    server_id TEXT NOT NULL REFERENCES servers (id) ON DELETE CASCADE,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    position BIGINT NOT NULL,
    definition BYTEA NOT NULL,
    PRIMARY KEY (server_id, kind, name)
);

CREATE TABLE connection_history (
    id BIGINT PRIMARY KEY,
    server_id TEXT NOT NULL REFERENCES servers (id) ON DELETE CASCADE,
    event_type TEXT NOT NULL,
    details TEXT NOT NULL,
    at DOUBLE PRECISION NOT NULL
);
CREATE INDEX connection_history_by_server ON connection_history (server_id, id);

CREATE TABLE keys (
    id TEXT PRIMARY KEY,
    role TEXT NOT NULL,
    agent TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    created_by TEXT NOT NULL,
    revoked_at DOUBLE PRECISION,
    revoked_by TEXT
);

CREATE TABLE settings (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL,
    version BIGINT NOT NULL,
    updated_at DOUBLE PRECISION NOT NULL,
    updated_by TEXT NOT NULL
);

CREATE TABLE events (
    seq BIGINT PRIMARY KEY,
    at DOUBLE PRECISION NOT NULL,
    origin TEXT NOT NULL,
    type TEXT NOT NULL,
    subject TEXT,
    data TEXT NOT NULL
);
