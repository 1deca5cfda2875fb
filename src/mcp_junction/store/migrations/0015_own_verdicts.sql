-- A tool's verdict by itself stands beside the one that its server's other tools have a part in, and who
-- gave it. The offline classifier is another one: everything is classified again.

ALTER TABLE tools ADD COLUMN own_skill_confidences TEXT NOT NULL DEFAULT '{}';
ALTER TABLE tools ADD COLUMN classified_by TEXT NOT NULL DEFAULT '';
UPDATE tools SET is_classified = FALSE;
