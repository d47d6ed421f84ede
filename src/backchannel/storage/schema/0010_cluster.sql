-- Several gateways on one database: until when each is taken for alive, what it can do, and who does what only one may.
ALTER TABLE processes ADD COLUMN lease_until BIGINT;   -- by the database's clock; absent where only one works at a time
ALTER TABLE processes ADD COLUMN place TEXT;           -- its state folder: a later process there knows that it is gone
ALTER TABLE processes ADD COLUMN name TEXT;
ALTER TABLE processes ADD COLUMN version TEXT;
ALTER TABLE processes ADD COLUMN config TEXT;          -- a digest: gateways should be configured alike
ALTER TABLE processes ADD COLUMN agents TEXT;          -- a JSON list of those it can run
CREATE INDEX processes_alive ON processes (number) WHERE ended_at IS NULL;
CREATE TABLE duties (                                  -- what one gateway does for all
  name TEXT PRIMARY KEY,
  process BIGINT NOT NULL
);
ALTER TABLE deliveries ADD COLUMN sender BIGINT;       -- the process that sends, or sent last
