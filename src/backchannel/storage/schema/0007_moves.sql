-- Chats that got another id: what is for them goes to the new one, what comes from there belongs to the same sessions.
CREATE TABLE chat_moves (
  channel TEXT NOT NULL,
  account_id TEXT NOT NULL,
  chat_id TEXT NOT NULL,
  moved_to TEXT,                  -- the id that it has now; absent: this is the one
  home TEXT,                      -- the id that its sessions are named by, where that is another
  PRIMARY KEY (channel, account_id, chat_id)
);
CREATE INDEX chat_moves_to ON chat_moves (channel, account_id, moved_to) WHERE moved_to IS NOT NULL;
CREATE INDEX sessions_address ON sessions (delivery_context) WHERE delivery_context IS NOT NULL;

-- Accounts by which nothing goes out for a while, because their platform asked for that.
CREATE TABLE account_holds (
  channel TEXT NOT NULL,
  account_id TEXT NOT NULL,
  set_at BIGINT NOT NULL,
  until_at BIGINT NOT NULL,
  PRIMARY KEY (channel, account_id)
);
