-- `approved_flags`: a person has approved the pinned definition, with these flags on it; a JSON list,
-- or null. `blocked`: a person keeps the tool out, whatever its definition, until it is approved.

ALTER TABLE tools ADD COLUMN approved_flags TEXT;
ALTER TABLE tools ADD COLUMN blocked BOOLEAN NOT NULL DEFAULT FALSE;
