-- The order in which messages were written, over all transcripts; in this database every row has such a number.
CREATE VIEW message_order AS SELECT rowid AS position, session_id, seq FROM messages;
