-- Skills, which tools have them, and the vectors of tools. Vectors are little-endian float32. A skill
-- whose `marked` is not its `computed` has changed, or its members have, since its vector was made.

CREATE TABLE skills (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    description TEXT NOT NULL,
    embedding BYTEA,
    tool_count BIGINT NOT NULL,
    marked BIGINT NOT NULL,
    computed BIGINT NOT NULL,
    version BIGINT NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    updated_at DOUBLE PRECISION NOT NULL
);

CREATE TABLE skill_members (
    skill_id TEXT NOT NULL REFERENCES skills (id) ON DELETE CASCADE,
    tool_id TEXT NOT NULL REFERENCES tools (id) ON DELETE CASCADE,
    PRIMARY KEY (skill_id, tool_id)
);
CREATE INDEX skill_members_by_tool ON skill_members (tool_id);

CREATE TABLE tool_vectors (
    tool_id TEXT PRIMARY KEY REFERENCES tools (id) ON DELETE CASCADE,
    hash TEXT NOT NULL,
    embedding BYTEA NOT NULL
);

ALTER TABLE tools ADD COLUMN skill_confidences TEXT NOT NULL DEFAULT '{}';
CREATE INDEX tools_unclassified ON tools (server_id, id) WHERE NOT is_classified;
