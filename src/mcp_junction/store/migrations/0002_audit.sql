-- One chain per writer: mac covers the row and the mac before it. `closes` names the intent
-- (writer:seq) that an outcome ends.

CREATE TABLE audit_writers (
    writer TEXT PRIMARY KEY,
    key_id TEXT NOT NULL,
    host TEXT NOT NULL,
    pid BIGINT NOT NULL,
    opened_at DOUBLE PRECISION NOT NULL,
    seen_at DOUBLE PRECISION NOT NULL,
    closed_at DOUBLE PRECISION
);

CREATE TABLE audit (
    writer TEXT NOT NULL,
    seq BIGINT NOT NULL,
    at DOUBLE PRECISION NOT NULL,
    kind TEXT NOT NULL,
    actor TEXT NOT NULL,
    role TEXT NOT NULL,
    action TEXT NOT NULL,
    correlation_id TEXT,
    server_id TEXT,
    target TEXT,
    decision TEXT,
    cached BOOLEAN NOT NULL,
    params_sha256 TEXT,
    outcome TEXT,
    delivery TEXT,
    attempts BIGINT NOT NULL,
    latency_ms DOUBLE PRECISION,
    summary TEXT,
    detail TEXT,
    closes TEXT,
    mac BYTEA NOT NULL,
    PRIMARY KEY (writer, seq)
)
WITHOUT ROWID -- only sqlite
;
CREATE INDEX audit_by_time ON audit (at);
CREATE INDEX audit_by_correlation ON audit (correlation_id) WHERE correlation_id IS NOT NULL;
CREATE INDEX audit_intents ON audit (writer) WHERE kind = 'intent';
CREATE INDEX audit_anchors ON audit (at) WHERE kind = 'anchor';
CREATE INDEX audit_closed ON audit (closes) WHERE closes IS NOT NULL;
