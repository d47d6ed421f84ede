-- Files that agents send: taken by a tool call, sent as parts of the reply's delivery.
-- additive
ALTER TABLE deliveries ADD COLUMN files TEXT;        -- JSON
ALTER TABLE delivery_parts ADD COLUMN file TEXT;     -- JSON
ALTER TABLE delivery_parts ADD COLUMN purpose TEXT;  -- what it is sent instead of, for its key
CREATE TABLE attachments (
  call_id TEXT PRIMARY KEY,
  run_id TEXT NOT NULL,
  number INTEGER NOT NULL,
  body TEXT NOT NULL
);
CREATE INDEX attachments_run ON attachments (run_id);
