-- What people look at: what a run did and when, and lists of exchanges.

ALTER TABLE tool_calls ADD COLUMN started_at BIGINT;  -- when it was asked for or, with outside effects, marked as begun
ALTER TABLE tool_calls ADD COLUMN ended_at BIGINT;

CREATE TABLE run_events (         -- what rarely happens to a run; its steps are in the transcript
  number {counter},
  run_id TEXT NOT NULL,
  at BIGINT NOT NULL,
  kind TEXT NOT NULL,             -- interrupted | resumed | setAside | retried | retry
  step INTEGER NOT NULL,          -- how many of the run's steps were committed
  process BIGINT,                 -- which process was interrupted, or went on
  until_at BIGINT,                -- when it is tried again
  body TEXT                       -- why, in words
);
CREATE INDEX run_events_run ON run_events (run_id, number);

CREATE INDEX deliveries_run ON deliveries (run_id) WHERE run_id IS NOT NULL;

CREATE INDEX exchanges_recent ON exchanges (created_at DESC, id DESC);
CREATE INDEX exchanges_recent_open ON exchanges (created_at DESC, id DESC) WHERE state <> 'done';
CREATE INDEX exchanges_recent_of_requester ON exchanges (requester_key, created_at DESC, id DESC);
CREATE INDEX exchanges_recent_of_target ON exchanges (target_key, created_at DESC, id DESC);
CREATE INDEX spawns_recent ON spawns (created_at DESC, id DESC);
