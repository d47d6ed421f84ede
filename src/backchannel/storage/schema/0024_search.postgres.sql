
ALTER TABLE messages ADD COLUMN words TSVECTOR;        -- NULL until it is indexed
CREATE INDEX messages_words ON messages USING gin (words);
CREATE INDEX messages_unindexed ON messages (position) WHERE words IS NULL;
