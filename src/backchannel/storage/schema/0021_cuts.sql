-- Where a model's view of a transcript begins, and what surrounded the messages of its last request.
-- additive
ALTER TABLE session_ids ADD COLUMN cut TEXT;             -- JSON; NULL: at the first message
ALTER TABLE session_ids ADD COLUMN shape TEXT;           -- JSON; NULL: no request was answered since this is kept
