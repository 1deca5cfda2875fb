-- What is known of failing servers and of calls that may be made once. Each row carries a MAC.

-- The state of each circuit that is or was not closed: of a tool, or of a whole server (tool `*`).
CREATE TABLE circuits (
    server_id TEXT NOT NULL,
    tool_name TEXT NOT NULL,
    state TEXT NOT NULL,
    failure_count BIGINT NOT NULL,
    last_failure_time DOUBLE PRECISION,
    opened_at DOUBLE PRECISION,
    mac BYTEA,
    PRIMARY KEY (server_id, tool_name)
);

-- Claims on idempotency keys. `owner` is the audit writer of the process that runs the call;
-- `arguments` their hash; `held_until` when a call that waits for its client is given up;
-- `result` the sealed answer.
CREATE TABLE idempotency_claims (
    id TEXT PRIMARY KEY,
    agent_id TEXT NOT NULL,
    server_id TEXT NOT NULL,
    tool_name TEXT NOT NULL,
    key TEXT NOT NULL,
    arguments TEXT NOT NULL,
    state TEXT NOT NULL,
    owner TEXT NOT NULL,
    made_at DOUBLE PRECISION NOT NULL,
    held_until DOUBLE PRECISION,
    result BYTEA,
    mac BYTEA
);
CREATE UNIQUE INDEX idempotency_claims_key
    ON idempotency_claims (agent_id, server_id, tool_name, key);
CREATE INDEX idempotency_claims_made_at ON idempotency_claims (made_at);

-- Calls that failed although all was tried; those that repeat share a row while it is open.
CREATE TABLE escalations (
    id TEXT PRIMARY KEY,
    agent_id TEXT NOT NULL,
    server_id TEXT NOT NULL,
    tool_name TEXT NOT NULL,
    failure TEXT NOT NULL,
    message TEXT NOT NULL,
    delivery TEXT,
    attempts BIGINT NOT NULL,
    correlation_id TEXT,
    count BIGINT NOT NULL,
    first_at DOUBLE PRECISION NOT NULL,
    last_at DOUBLE PRECISION NOT NULL,
    acknowledged_at DOUBLE PRECISION,
    acknowledged_by TEXT,
    note TEXT,
    mac BYTEA
);
CREATE INDEX escalations_last_at ON escalations (last_at);

ALTER TABLE servers ADD COLUMN trust_retry_after BOOLEAN NOT NULL DEFAULT FALSE;
