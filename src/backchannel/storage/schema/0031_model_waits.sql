-- Models in a row: the fallbacks of a run, and the model that a queued run waits for.
-- A run that waits keeps its lane, which older gateways do not know: they would start the run behind it.
ALTER TABLE runs ADD COLUMN fallbacks TEXT; -- JSON; NULL: the agent's
ALTER TABLE runs ADD COLUMN waits_for TEXT; -- JSON: the model, why, since when, how often it was asked
ALTER TABLE runs ADD COLUMN waits_on TEXT; -- the provider of that model, while resume_at says until when
ALTER TABLE runs ADD COLUMN wait_told INTEGER NOT NULL DEFAULT 0; -- whether the chat that is owed an answer knows
CREATE INDEX runs_waiting ON runs (waits_on, position) WHERE waits_on IS NOT NULL;
