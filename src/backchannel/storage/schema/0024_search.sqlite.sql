
-- Each row has the number of its message, and no text: the message has that.
CREATE VIRTUAL TABLE message_words USING fts5(said, tools, owner, content='', columnsize=0, tokenize='ascii');
CREATE TABLE unindexed (position INTEGER PRIMARY KEY); -- messages whose words are not in message_words yet
CREATE TRIGGER messages_unindexed AFTER INSERT ON messages BEGIN
  INSERT INTO unindexed (position) VALUES (new.rowid);
END;
CREATE TRIGGER messages_removed AFTER DELETE ON messages BEGIN
  DELETE FROM unindexed WHERE position = old.rowid;
END;
INSERT INTO unindexed (position) SELECT rowid FROM messages;
