-- What a gateway shows and keeps for the others on its database.
-- additive
ALTER TABLE processes ADD COLUMN jobs TEXT;            -- a JSON list of the cron jobs of its configuration
