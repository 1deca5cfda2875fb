-- The rows of the audit lie in pages: what one flush wrote, a JSON array a line, sealed as a whole.
-- `tags` holds sixteen bytes for each row, so that a row that was changed can be named. `audit_open`
-- has the intents that no outcome has closed yet. The table of 0002 was never part of a release.

DROP TABLE audit;
CREATE TABLE audit_pages (
    writer TEXT NOT NULL,
    first_seq BIGINT NOT NULL,
    last_seq BIGINT NOT NULL,
    first_at DOUBLE PRECISION NOT NULL,
    last_at DOUBLE PRECISION NOT NULL,
    mac BYTEA NOT NULL,
    tags BYTEA NOT NULL,
    body BYTEA NOT NULL,
    PRIMARY KEY (writer, last_seq)
);
CREATE INDEX audit_pages_by_time ON audit_pages (last_at);
CREATE TABLE audit_open (
    writer TEXT NOT NULL,
    seq BIGINT NOT NULL,
    PRIMARY KEY (writer, seq)
);
