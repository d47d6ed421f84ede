-- One schema for both dialects: {counter} is the driver's word for a growing primary key. JSON is text, times are
-- milliseconds since 1970, booleans are 0 and 1.

CREATE TABLE processes (          -- every start of a gateway; its number is the fence of the runs it holds
  number {counter},
  started_at BIGINT NOT NULL,
  ended_at BIGINT                 -- set by a clean shutdown only
);

CREATE TABLE sessions (
  key TEXT PRIMARY KEY,
  agent_id TEXT NOT NULL,
  kind TEXT NOT NULL,
  session_id TEXT NOT NULL,
  label TEXT,
  display_name TEXT,
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  archived_at BIGINT,
  deleting INTEGER NOT NULL DEFAULT 0,
  spawned_by TEXT,
  channel TEXT,
  delivery_context TEXT,
  model TEXT,
  thinking_level TEXT,
  verbose_level TEXT,
  send_policy TEXT,
  system_sent INTEGER NOT NULL DEFAULT 0,
  aborted_last_run INTEGER NOT NULL DEFAULT 0,
  total_tokens BIGINT,
  context_tokens BIGINT,
  tokens_in BIGINT NOT NULL DEFAULT 0,
  tokens_out BIGINT NOT NULL DEFAULT 0,
  cost DOUBLE PRECISION,
  running_run TEXT,
  queued INTEGER NOT NULL DEFAULT 0,
  held_posts INTEGER NOT NULL DEFAULT 0  -- results of sub-agents that wait for a wake
);
CREATE INDEX sessions_recent ON sessions (updated_at DESC, key) WHERE archived_at IS NULL;
CREATE INDEX sessions_recent_of_agent ON sessions (agent_id, updated_at DESC, key) WHERE archived_at IS NULL;
CREATE INDEX sessions_archived ON sessions (updated_at DESC, key) WHERE archived_at IS NOT NULL;
CREATE INDEX sessions_children ON sessions (spawned_by) WHERE spawned_by IS NOT NULL;
CREATE UNIQUE INDEX sessions_label ON sessions (label, agent_id) WHERE label IS NOT NULL AND archived_at IS NULL;

CREATE TABLE session_ids (        -- every transcript there ever was
  session_id TEXT PRIMARY KEY,
  key TEXT NOT NULL,
  mark TEXT NOT NULL,             -- the secret word of headers in this transcript
  next_seq BIGINT NOT NULL DEFAULT 0,
  created_at BIGINT NOT NULL,
  ended_at BIGINT,
  end_reason TEXT                 -- reset | deleted | importing: taken from elsewhere, and not all of it is here yet
);
CREATE INDEX session_ids_key ON session_ids (key);

CREATE TABLE messages (
  session_id TEXT NOT NULL,
  seq BIGINT NOT NULL,
  id TEXT NOT NULL UNIQUE,
  role TEXT NOT NULL,
  body TEXT NOT NULL,
  PRIMARY KEY (session_id, seq)
);

CREATE TABLE inbox (              -- notes; a queued run's message waits on its run
  position {counter},
  id TEXT NOT NULL UNIQUE,
  session_key TEXT NOT NULL,
  body TEXT NOT NULL
);
CREATE INDEX inbox_session ON inbox (session_key, position);

CREATE TABLE runs (
  position {counter},
  id TEXT NOT NULL UNIQUE,
  session_key TEXT NOT NULL,
  session_id TEXT,
  kind TEXT NOT NULL,
  state TEXT NOT NULL,
  accepted_at BIGINT NOT NULL,
  started_at BIGINT,
  ended_at BIGINT,
  message TEXT,
  message_id TEXT NOT NULL,
  deliver INTEGER NOT NULL,
  reply_to TEXT,
  model TEXT,
  thinking TEXT,
  timeout_s DOUBLE PRECISION,
  step INTEGER NOT NULL DEFAULT 0,
  ran_ms BIGINT NOT NULL DEFAULT 0,
  fence BIGINT NOT NULL DEFAULT 0,
  crashes INTEGER NOT NULL DEFAULT 0,
  abort_requested INTEGER NOT NULL DEFAULT 0,
  error_code TEXT,
  error TEXT,
  reply TEXT,
  answered_by TEXT,
  tokens_in BIGINT NOT NULL DEFAULT 0,
  tokens_out BIGINT NOT NULL DEFAULT 0,
  cost DOUBLE PRECISION,
  chain_id TEXT NOT NULL,
  hop INTEGER NOT NULL DEFAULT 0,
  exchange_id TEXT,
  spawn_id TEXT
);
CREATE INDEX runs_session ON runs (session_key, position);
CREATE INDEX runs_live ON runs (session_key, position) WHERE state IN ('queued', 'running');
CREATE INDEX runs_chain ON runs (chain_id) WHERE hop > 0;
CREATE INDEX runs_spawn ON runs (spawn_id) WHERE spawn_id IS NOT NULL;
CREATE INDEX runs_exchange ON runs (exchange_id) WHERE exchange_id IS NOT NULL;

CREATE TABLE tool_calls (
  id TEXT PRIMARY KEY,
  run_id TEXT NOT NULL,
  step INTEGER NOT NULL,
  position INTEGER NOT NULL,
  name TEXT NOT NULL,
  arguments TEXT NOT NULL,
  state TEXT NOT NULL,            -- planned | started | done
  result TEXT
);
CREATE INDEX tool_calls_open ON tool_calls (run_id, step, position) WHERE state <> 'done';

CREATE TABLE idempotency (
  key TEXT PRIMARY KEY,
  digest TEXT NOT NULL,           -- token, method, session and message, hashed
  run_id TEXT,
  result TEXT,
  created_at BIGINT NOT NULL
);

CREATE TABLE exchanges (
  id TEXT PRIMARY KEY,
  requester_key TEXT,
  target_key TEXT NOT NULL,
  state TEXT NOT NULL,
  turn INTEGER NOT NULL DEFAULT 0,
  body TEXT NOT NULL,             -- the flow's own values, as core/flows/exchange.py writes them
  call_id TEXT,                   -- the tool call that sent, in a run of the requester
  delivery_id TEXT,
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL
);
CREATE INDEX exchanges_requester ON exchanges (requester_key) WHERE state <> 'done';
CREATE INDEX exchanges_target ON exchanges (target_key) WHERE state <> 'done';
CREATE UNIQUE INDEX exchanges_call ON exchanges (call_id) WHERE call_id IS NOT NULL;

CREATE TABLE spawns (
  id TEXT PRIMARY KEY,
  requester_key TEXT NOT NULL,
  requester_run TEXT,
  child_key TEXT NOT NULL UNIQUE,
  state TEXT NOT NULL,
  body TEXT NOT NULL,
  delivery_id TEXT NOT NULL,
  call_id TEXT,                   -- the tool call that asked for it, in a run of the requester
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL
);
CREATE INDEX spawns_requester ON spawns (requester_key) WHERE state <> 'done';
CREATE INDEX spawns_delivery ON spawns (delivery_id);
CREATE INDEX spawns_call ON spawns (call_id) WHERE call_id IS NOT NULL;

CREATE TABLE barriers (           -- one per run that spawned; opens when its children are settled
  id TEXT PRIMARY KEY,
  session_key TEXT NOT NULL,
  state TEXT NOT NULL,            -- open | done
  body TEXT NOT NULL,
  created_at BIGINT NOT NULL
);
CREATE INDEX barriers_session ON barriers (session_key) WHERE state = 'open';

CREATE TABLE waits (              -- who waits for whom: read for the circle check
  call_id TEXT PRIMARY KEY,
  waiter_key TEXT NOT NULL,
  target_key TEXT NOT NULL,
  run_id TEXT NOT NULL,           -- the run that is waited for
  until_at BIGINT NOT NULL,
  fence BIGINT NOT NULL DEFAULT 0 -- the fence of the waiting run when it last began to wait
);
CREATE INDEX waits_waiter ON waits (waiter_key);
CREATE INDEX waits_run ON waits (run_id);

CREATE TABLE deliveries (
  number {counter},               -- the order in which receipts were made: lists go by it
  position BIGINT NOT NULL DEFAULT 0,  -- the place in line, taken when the text is written and by each retry
  id TEXT NOT NULL UNIQUE,
  session_key TEXT NOT NULL,
  exchange_id TEXT,
  run_id TEXT,
  state TEXT NOT NULL,
  channel TEXT,
  account_id TEXT,
  target TEXT,
  thread_id TEXT,
  text TEXT,
  attempts INTEGER NOT NULL DEFAULT 0,
  error TEXT,
  due_at BIGINT,
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL
);
CREATE INDEX deliveries_open ON deliveries (channel, account_id, target, thread_id, position)
  WHERE state IN ('pending', 'sending') AND text IS NOT NULL;
CREATE INDEX deliveries_sending ON deliveries (id) WHERE state = 'sending';
CREATE INDEX deliveries_due ON deliveries (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX deliveries_position ON deliveries (position);
CREATE INDEX deliveries_session ON deliveries (session_key, number);
CREATE INDEX deliveries_state ON deliveries (state, number);

CREATE TABLE delivery_parts (
  delivery_id TEXT NOT NULL,
  n INTEGER NOT NULL,
  text TEXT NOT NULL,
  state TEXT NOT NULL,
  message_id TEXT,
  attempts INTEGER NOT NULL DEFAULT 0,
  error TEXT,
  first_attempt_at BIGINT,
  PRIMARY KEY (delivery_id, n)
);

CREATE TABLE inbound_ids (        -- every inbound message is handled once, for ever
  channel TEXT NOT NULL,
  account_id TEXT NOT NULL,
  chat_id TEXT NOT NULL,
  message_id TEXT NOT NULL,
  outcome TEXT NOT NULL,          -- what was made of it: told again when it comes again
  at BIGINT NOT NULL,
  PRIMARY KEY (channel, account_id, chat_id, message_id)
);

CREATE TABLE leases (
  session_key TEXT PRIMARY KEY,
  process BIGINT NOT NULL,
  fence BIGINT NOT NULL,
  until_at BIGINT NOT NULL
);

CREATE TABLE channel_state (
  channel TEXT NOT NULL,
  account_id TEXT NOT NULL,
  body TEXT NOT NULL,
  PRIMARY KEY (channel, account_id)
);

CREATE TABLE cron_jobs (
  id TEXT PRIMARY KEY,
  source TEXT NOT NULL,           -- config | runtime
  body TEXT NOT NULL,             -- the job, as it was written
  created_at BIGINT NOT NULL,     -- intervals are counted from it
  next_at BIGINT,                 -- the timer `cron` has the same time, or a later one
  fired_at BIGINT,                -- the last of its times that came, skipped or not
  last_run TEXT,
  skipped BIGINT NOT NULL DEFAULT 0,
  error TEXT                      -- why there is no next time, where there should be one
);

CREATE TABLE timers (             -- everything that must happen later
  kind TEXT NOT NULL,
  ref TEXT NOT NULL,
  due_at BIGINT NOT NULL,
  PRIMARY KEY (kind, ref)
);
CREATE INDEX timers_due ON timers (due_at);

CREATE TABLE tokens (
  id TEXT PRIMARY KEY,
  digest TEXT NOT NULL UNIQUE,
  scopes TEXT NOT NULL,
  session_key TEXT,
  label TEXT,
  created_at BIGINT NOT NULL,
  revoked_at BIGINT
);
