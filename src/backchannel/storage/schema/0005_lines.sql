-- The line of each chat counts its own places: what is written for different chats waits for nothing in common.
CREATE TABLE delivery_lines (
  channel TEXT NOT NULL,
  account_id TEXT NOT NULL,
  target TEXT NOT NULL,
  thread_id TEXT NOT NULL,        -- '' where there is none
  last BIGINT NOT NULL,           -- the place that was given out last
  PRIMARY KEY (channel, account_id, target, thread_id)
);
INSERT INTO delivery_lines (channel, account_id, target, thread_id, last)
  SELECT channel, account_id, target, coalesce(thread_id, ''), max(position) FROM deliveries
  WHERE channel IS NOT NULL AND account_id IS NOT NULL AND target IS NOT NULL
  GROUP BY channel, account_id, target, coalesce(thread_id, '');
DROP INDEX deliveries_position;
