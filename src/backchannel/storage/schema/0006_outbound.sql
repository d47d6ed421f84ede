-- The message that a reply answers, where it is quoted: in groups, which go on while a run works.
ALTER TABLE runs ADD COLUMN quotes TEXT;
ALTER TABLE deliveries ADD COLUMN quotes TEXT;
