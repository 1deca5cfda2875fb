-- Keys carry a MAC over their row; a row without a valid one is no key. The one row of `key_state`
-- says that rows from before were signed, and whether a key for anybody but an administrator was
-- ever made; it carries a MAC, too.

ALTER TABLE keys ADD COLUMN mac BYTEA;

CREATE TABLE key_state (
    id BIGINT PRIMARY KEY,
    issued BOOLEAN NOT NULL,
    mac BYTEA NOT NULL
);
