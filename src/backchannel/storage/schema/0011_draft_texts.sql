-- What a draft said when it was posted: if the answer was lost, the reply must not say the same once more.
ALTER TABLE drafts ADD COLUMN text TEXT NOT NULL DEFAULT '';
ALTER TABLE delivery_parts ADD COLUMN note TEXT;  -- what a reader of the receipt should know, also once it is sent
