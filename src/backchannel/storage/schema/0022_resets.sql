-- When a person or an operator last used a session, and which transcript each transcript follows.
-- `end_reason` also says `daily` and `idle`: to an older gateway that is a reset, as any word but `deleted` and `importing`.
-- additive
ALTER TABLE sessions ADD COLUMN used_at BIGINT;                      -- NULL: not since this is recorded; `updated_at` counts
ALTER TABLE session_ids ADD COLUMN follows TEXT;                     -- the transcript that a reset ended
ALTER TABLE session_ids ADD COLUMN carries INTEGER NOT NULL DEFAULT 0;  -- 1: it begins with a summary of that one
