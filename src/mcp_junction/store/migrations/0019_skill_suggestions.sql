-- Skills that are suggested for tools that fit none, until a person approves or rejects them.

CREATE TABLE skill_suggestions (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    description TEXT NOT NULL,
    tool_ids TEXT NOT NULL,
    status TEXT NOT NULL,
    skill_id TEXT,
    created_at DOUBLE PRECISION NOT NULL,
    decided_at DOUBLE PRECISION,
    decided_by TEXT
);
