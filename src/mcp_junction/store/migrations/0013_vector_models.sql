-- Vectors of tools carry the id of the model that made them, and a tool may have vectors of several.
-- Those of before have none: they are computed again, and so is what was made of them.

DROP TABLE tool_vectors;
CREATE TABLE tool_vectors (
    tool_id TEXT NOT NULL REFERENCES tools (id) ON DELETE CASCADE,
    model TEXT NOT NULL,
    hash TEXT NOT NULL,
    embedding BYTEA NOT NULL,
    PRIMARY KEY (tool_id, model)
);

UPDATE tools SET is_classified = FALSE;
UPDATE skills SET embedding = NULL, marked = marked + 1;
