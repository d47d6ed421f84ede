-- Tool calls that a person has to allow: a row before anyone is asked, and each is answered once.
CREATE TABLE approvals (
  number {counter},
  id TEXT NOT NULL UNIQUE,
  call_id TEXT NOT NULL UNIQUE,
  run_id TEXT NOT NULL,
  session_key TEXT NOT NULL,
  tool TEXT NOT NULL,
  arguments TEXT NOT NULL,
  state TEXT NOT NULL,            -- pending | approved | denied | expired
  created_at BIGINT NOT NULL,
  answered_at BIGINT,
  answered_by TEXT,
  fence BIGINT NOT NULL            -- the fence of the waiting run when it last began to wait
);
CREATE INDEX approvals_state ON approvals (state, number);
CREATE INDEX approvals_session ON approvals (session_key, number);

CREATE TABLE approval_grants (    -- tools that an owner has allowed in a session once and for all
  session_key TEXT NOT NULL,
  tool TEXT NOT NULL,
  granted_at BIGINT NOT NULL,
  PRIMARY KEY (session_key, tool)
);
