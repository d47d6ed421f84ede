
CREATE UNLOGGED TABLE growing (                        -- what a run streams, while somebody on another gateway reads it
  run_id TEXT PRIMARY KEY,
  wanted_until BIGINT NOT NULL,                        -- by the database's clock
  fence BIGINT,                                        -- of the process that streams it
  body TEXT                                            -- JSON: all that was streamed so far
);
CREATE UNLOGGED TABLE wakeups (                        -- what gateways tell each other where there is no NOTIFY
  id {counter},
  sent_at BIGINT NOT NULL,
  body TEXT NOT NULL
);
CREATE INDEX wakeups_sent ON wakeups (sent_at);
CREATE TABLE media (                                   -- pictures that came in by any of the gateways, in parts
  name TEXT NOT NULL,
  part BIGINT NOT NULL,
  parts BIGINT NOT NULL,
  content BYTEA NOT NULL,
  PRIMARY KEY (name, part)
);
