-- What is used up of the limits of grants, so that a restart does not hand it out again.

CREATE TABLE limit_windows (
    grant_id TEXT PRIMARY KEY,
    per DOUBLE PRECISION NOT NULL,
    slots TEXT NOT NULL,
    expires_at DOUBLE PRECISION NOT NULL,
    mac BYTEA NOT NULL
);
