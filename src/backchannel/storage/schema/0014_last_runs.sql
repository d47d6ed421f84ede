-- How the last run of a session's transcript ended, so that lists can say it without looking for the run.
-- additive
ALTER TABLE sessions ADD COLUMN last_state TEXT;
