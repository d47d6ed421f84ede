-- Whether the chat of a session was told that its queue is full. Cleared when half of the queue is done.
-- additive
ALTER TABLE sessions ADD COLUMN full_told INTEGER NOT NULL DEFAULT 0;
