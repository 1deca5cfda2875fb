-- What operators set for tools, seen or not seen yet: signed rows, where null is not set. Until now
-- such settings stood unsigned among the columns of `tools`: `unsigned_tool_settings` keeps them until
-- they are signed, once; the row of `tool_setting_state`, which carries a MAC, says that it was done.
-- `declared_tools` are the tools that a server was registered with.

CREATE TABLE tool_settings (
    server_id TEXT NOT NULL REFERENCES servers (id) ON DELETE CASCADE,
    tool_name TEXT NOT NULL,
    enabled BOOLEAN,
    risk TEXT,
    read_only BOOLEAN,
    idempotent BOOLEAN,
    timeout_ms BIGINT,
    fallbacks TEXT NOT NULL,
    versions TEXT,
    updated_at DOUBLE PRECISION NOT NULL,
    updated_by TEXT NOT NULL,
    mac BYTEA,
    PRIMARY KEY (server_id, tool_name)
);

CREATE TABLE tool_setting_state (
    id BIGINT PRIMARY KEY,
    mac BYTEA NOT NULL
);

CREATE TABLE unsigned_tool_settings AS
    SELECT server_id, name AS tool_name, CASE WHEN enabled THEN NULL ELSE FALSE END AS enabled, risk,
        read_only, idempotent, timeout_ms, fallbacks, versions
    FROM tools
    WHERE NOT enabled OR risk IS NOT NULL OR read_only IS NOT NULL OR idempotent IS NOT NULL
        OR timeout_ms IS NOT NULL OR fallbacks <> '[]' OR versions IS NOT NULL;

ALTER TABLE tools DROP COLUMN enabled;
ALTER TABLE tools DROP COLUMN risk;
ALTER TABLE tools DROP COLUMN read_only;
ALTER TABLE tools DROP COLUMN idempotent;
ALTER TABLE tools DROP COLUMN timeout_ms;
ALTER TABLE tools DROP COLUMN fallbacks;
ALTER TABLE tools DROP COLUMN tool_version;
ALTER TABLE tools DROP COLUMN versions;

CREATE TABLE declared_tools (
    server_id TEXT NOT NULL REFERENCES servers (id) ON DELETE CASCADE,
    tool_name TEXT NOT NULL,
    definition BYTEA NOT NULL,
    version TEXT,
    PRIMARY KEY (server_id, tool_name)
);

ALTER TABLE servers ADD COLUMN metadata TEXT NOT NULL DEFAULT '{}';
