-- Calls that wait for a person, or were decided about. Rows carry a MAC; a row without a valid one
-- is none. Of the same call only one row is open: `closed_at` is set when it was used or replaced.

CREATE TABLE approvals (
    id TEXT PRIMARY KEY,
    binding TEXT NOT NULL,
    agent_id TEXT NOT NULL,
    asked_by TEXT NOT NULL,
    asked_role TEXT NOT NULL,
    server_id TEXT NOT NULL,
    tool_name TEXT NOT NULL,
    grant_id TEXT NOT NULL,
    risk TEXT NOT NULL,
    preview TEXT NOT NULL,
    arguments BYTEA NOT NULL,
    correlation_id TEXT,
    requested_at DOUBLE PRECISION NOT NULL,
    expires_at DOUBLE PRECISION NOT NULL,
    state TEXT NOT NULL,
    decided_at DOUBLE PRECISION,
    decided_by TEXT,
    note TEXT,
    closed_at DOUBLE PRECISION,
    mac BYTEA NOT NULL
);
CREATE UNIQUE INDEX approvals_open ON approvals (binding) WHERE closed_at IS NULL;
CREATE INDEX approvals_by_time ON approvals (requested_at);
