-- The check of a cron job with `when` that is under way, and why times of a job were skipped.
-- additive
ALTER TABLE cron_jobs ADD COLUMN checking TEXT;                            -- the id that the run will have; NULL: no check
ALTER TABLE cron_jobs ADD COLUMN checking_since BIGINT;
ALTER TABLE cron_jobs ADD COLUMN checker BIGINT;                           -- the process that runs the command
ALTER TABLE cron_jobs ADD COLUMN check_crashes INTEGER NOT NULL DEFAULT 0; -- how often a process died during this check
ALTER TABLE cron_jobs ADD COLUMN skips TEXT;                               -- JSON: for each reason a count, the last time and why
