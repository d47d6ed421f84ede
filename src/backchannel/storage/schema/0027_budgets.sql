-- The ledger of budgets: what is counted in each window, with the highest costs of calls that are under way (`open_`).
-- additive
CREATE TABLE budget_windows (
    id TEXT PRIMARY KEY,                     -- <budget>/<start>/<subject>
    budget TEXT NOT NULL,
    subject TEXT NOT NULL,                   -- '' or an agent, a session, a chain, a sender
    start_at BIGINT NOT NULL,
    usd BIGINT NOT NULL DEFAULT 0,           -- millionths of a dollar
    tokens BIGINT NOT NULL DEFAULT 0,
    runs BIGINT NOT NULL DEFAULT 0,
    open_usd BIGINT NOT NULL DEFAULT 0,      -- of these: held by calls without a reply
    open_tokens BIGINT NOT NULL DEFAULT 0,
    granted INTEGER NOT NULL DEFAULT 0,      -- how often owners granted the amount again
    denied INTEGER NOT NULL DEFAULT 0,
    warned INTEGER NOT NULL DEFAULT 0,       -- 1: owners were told that much is spent
    touched_at BIGINT NOT NULL
);
CREATE INDEX budget_windows_current ON budget_windows (budget, start_at);
-- Calls under way that belong to no run's step, such as those for summaries.
CREATE TABLE budget_holds (
    id TEXT PRIMARY KEY,
    process BIGINT NOT NULL,
    body TEXT NOT NULL
);
ALTER TABLE runs ADD COLUMN reserved TEXT;   -- JSON: what the next call of the run may cost at most
