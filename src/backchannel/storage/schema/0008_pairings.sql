-- People whom no setting names: who was sent a code, and what an owner said of them.
CREATE TABLE pairings (
  number {counter},
  channel TEXT NOT NULL,
  account_id TEXT NOT NULL,
  sender_id TEXT NOT NULL,
  sender_name TEXT,
  code TEXT NOT NULL,
  state TEXT NOT NULL,            -- pending | approved | denied
  session_key TEXT NOT NULL,
  address TEXT NOT NULL,          -- where they wrote
  created_at BIGINT NOT NULL,
  answered_at BIGINT,
  answered_by TEXT,
  UNIQUE (channel, account_id, sender_id)
);
CREATE INDEX pairings_state ON pairings (state, number);
CREATE INDEX pairings_created ON pairings (created_at);
