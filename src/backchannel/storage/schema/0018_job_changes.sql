-- When a cron job was last changed, so that lists can say it; NULL: never since it came.
-- additive
ALTER TABLE cron_jobs ADD COLUMN updated_at BIGINT;
