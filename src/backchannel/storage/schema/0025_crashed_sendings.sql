-- How many attempts to send a part ended with the process that made them. They do not count.
-- additive
ALTER TABLE delivery_parts ADD COLUMN crashes INTEGER NOT NULL DEFAULT 0;
