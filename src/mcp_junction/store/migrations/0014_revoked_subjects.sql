-- Since when access tokens of a subject must have been issued to be accepted at our door.

CREATE TABLE revoked_subjects (
    issuer TEXT NOT NULL,
    subject TEXT NOT NULL,
    not_before DOUBLE PRECISION NOT NULL,
    revoked_by TEXT NOT NULL,
    mac BYTEA NOT NULL,
    PRIMARY KEY (issuer, subject)
);
