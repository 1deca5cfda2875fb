-- Whether a form of a tool since its last approval said that it destroys: that stays a high risk.

ALTER TABLE tools ADD COLUMN was_destructive BOOLEAN NOT NULL DEFAULT FALSE;
