-- What a gateway has to remember so that nobody is left without an answer, or takes one for another's.

ALTER TABLE runs ADD COLUMN failure_told INTEGER NOT NULL DEFAULT 0;  -- whoever was owed an answer knows there is none
-- Runs that go on after crashes. A run that was interrupted too often in one step is set aside until `resume_at`.
ALTER TABLE runs ADD COLUMN resume_at BIGINT;
ALTER TABLE runs ADD COLUMN ran_at BIGINT;                          -- when `ran_ms` was true; started_at if not set
ALTER TABLE runs ADD COLUMN excused_ms BIGINT NOT NULL DEFAULT 0;   -- of `ran_ms`, what does not count for its limit
ALTER TABLE sessions ADD COLUMN set_aside INTEGER NOT NULL DEFAULT 0;  -- how many of its runs are; `queued` has the others
ALTER TABLE processes ADD COLUMN alive_at BIGINT;                   -- its last sign of life while it had work

CREATE TABLE function_agents (    -- agents that a program has brought as functions: nothing else answers in their place
  id TEXT PRIMARY KEY,
  since BIGINT NOT NULL
);

ALTER TABLE runs ADD COLUMN join_digest TEXT;   -- what was asked, hashed: the same request again joins the run
CREATE INDEX runs_joined ON runs (join_digest, position) WHERE join_digest IS NOT NULL;
ALTER TABLE runs ADD COLUMN instructions TEXT;  -- what the model is told for this run only, besides its agent's
ALTER TABLE sessions ADD COLUMN lives_ms BIGINT; -- how long after its last use it is archived

CREATE TABLE mcp_calls (          -- calls that came by MCP, so that a client whose stream broke can come back for them
  id TEXT PRIMARY KEY,
  token_id TEXT NOT NULL,
  session_key TEXT,
  version TEXT NOT NULL,          -- of the protocol
  message TEXT NOT NULL,          -- the request as it came
  created_at BIGINT NOT NULL
);
CREATE INDEX mcp_calls_age ON mcp_calls (created_at);

-- What is wrong now.
CREATE INDEX runs_failed ON runs (ended_at) WHERE state IN ('error', 'timeout');
ALTER TABLE processes ADD COLUMN default_model TEXT;                -- that of agents that name none, if there are any
CREATE TABLE probe (              -- one row that is written anew to see whether there is room for a message
  id INTEGER PRIMARY KEY,
  body TEXT NOT NULL
);

-- Who speaks: a session that two people have written to in direct chats shows a model whose each message is.
ALTER TABLE sessions ADD COLUMN first_person TEXT;
ALTER TABLE sessions ADD COLUMN is_shared INTEGER NOT NULL DEFAULT 0;

-- Times that hold while the clock is set: how long a timer was meant to wait, and how long a part was waited with.
ALTER TABLE timers ADD COLUMN set_at BIGINT NOT NULL DEFAULT 0;
ALTER TABLE delivery_parts DROP COLUMN first_attempt_at;
ALTER TABLE delivery_parts ADD COLUMN waited_ms BIGINT NOT NULL DEFAULT 0;

-- The open exchanges of a session, in an order in which they can be gone through a part at a time.
DROP INDEX exchanges_requester;
DROP INDEX exchanges_target;
CREATE INDEX exchanges_requester ON exchanges (requester_key, id) WHERE state <> 'done';
CREATE INDEX exchanges_target ON exchanges (target_key, id) WHERE state <> 'done';

-- What a stop ends, without going through people's messages that wait; and sessions whose notes enter part by part.
CREATE INDEX runs_of_flows ON runs (session_key, position)
  WHERE state IN ('queued', 'running') AND (kind IN ('turn', 'wake') OR spawn_id IS NOT NULL);
ALTER TABLE sessions ADD COLUMN flushing INTEGER NOT NULL DEFAULT 0;
