-- An index over the pages of the audit, made of them and never evidence. A segment is a stretch of
-- one writer's chain: `pages` names its pages, `terms` the hashes of what its rows tell (8 bytes
-- each), `correlations` is a Bloom filter of correlation ids that do not tell their time. A row of
-- `audit_terms` says which pages of a segment have a term: a byte for each.

CREATE TABLE audit_segments (
    id BIGINT PRIMARY KEY,
    writer TEXT NOT NULL,
    first_seq BIGINT NOT NULL,
    last_seq BIGINT NOT NULL,
    first_at DOUBLE PRECISION NOT NULL,
    last_at DOUBLE PRECISION NOT NULL,
    pages BYTEA NOT NULL,
    terms BYTEA NOT NULL,
    correlations BYTEA NOT NULL,
    UNIQUE (writer, last_seq)
);
CREATE INDEX audit_segments_by_time ON audit_segments (last_at, id);
CREATE TABLE audit_terms (
    term BIGINT NOT NULL,
    last_at DOUBLE PRECISION NOT NULL,
    segment BIGINT NOT NULL,
    first_at DOUBLE PRECISION NOT NULL,
    pages BYTEA NOT NULL,
    PRIMARY KEY (term, last_at, segment)
)
WITHOUT ROWID -- only sqlite
;
