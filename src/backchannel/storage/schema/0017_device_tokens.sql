-- Pages that stay logged in: tokens that count only together with a signature of their device's key.
-- additive
CREATE TABLE device_tokens (
  id TEXT PRIMARY KEY,
  digest TEXT NOT NULL UNIQUE,
  salt TEXT NOT NULL,             -- with the token that it was made from, it gives the same token again
  device_id TEXT NOT NULL,        -- the fingerprint of its key
  public_key TEXT NOT NULL,
  parent TEXT NOT NULL,           -- the id of the token that it was made from, or `operator:` and a mark of the operator's
  scopes TEXT NOT NULL,
  client TEXT NOT NULL,           -- what the page called itself
  platform TEXT NOT NULL,
  origin TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  used_at BIGINT NOT NULL,        -- to the hour
  UNIQUE (device_id, parent)
);
CREATE INDEX device_tokens_parent ON device_tokens (parent, used_at);
