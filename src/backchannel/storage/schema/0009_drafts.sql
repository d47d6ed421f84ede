-- Replies that are shown in their chat while they grow: a row before the first is posted, so that none is posted twice.
CREATE TABLE drafts (
  run_id TEXT PRIMARY KEY,
  channel TEXT NOT NULL,
  account_id TEXT NOT NULL,
  target TEXT NOT NULL,
  thread_id TEXT,
  place BIGINT NOT NULL,          -- the last place that the line of its chat had given out when it was posted
  state TEXT NOT NULL,            -- growing | lost | final | removing
  message_id TEXT,                -- the platform's own, once it has answered
  delivery_id TEXT                -- what takes its place
);
CREATE INDEX drafts_delivery ON drafts (delivery_id) WHERE delivery_id IS NOT NULL;
ALTER TABLE delivery_parts ADD COLUMN draft_id TEXT;  -- the message that is edited instead of posting the part
