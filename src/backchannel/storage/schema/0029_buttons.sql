-- Buttons under a message, the question that it asks, and the delivery whose message another one replaces.
-- The direct chats of owners, where they are asked.
-- additive
ALTER TABLE deliveries ADD COLUMN buttons TEXT;
ALTER TABLE deliveries ADD COLUMN question TEXT;
ALTER TABLE deliveries ADD COLUMN edits TEXT;
CREATE INDEX deliveries_question ON deliveries (question) WHERE question IS NOT NULL;
CREATE TABLE owner_chats (
  channel TEXT NOT NULL,
  account_id TEXT NOT NULL,
  owner_id TEXT NOT NULL,
  chat_id TEXT NOT NULL,
  PRIMARY KEY (channel, account_id, owner_id)
);
