-- What a gateway has to remember so that nobody is left without an answer, or takes one for another's.

ALTER TABLE runs ADD COLUMN failure_told INTEGER NOT NULL DEFAULT 0;  -- whoever was owed an answer knows there is none
