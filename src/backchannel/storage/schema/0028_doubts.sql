-- When a part was first sent without an answer: a platform remembers its key for a while, or can be asked for it.
-- additive
ALTER TABLE delivery_parts ADD COLUMN doubt_at BIGINT;
