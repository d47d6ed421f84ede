CREATE TABLE commit_marks (
  writer TEXT PRIMARY KEY,
  number BIGINT NOT NULL,                                -- of its last transaction that was committed
  marked_at TIMESTAMPTZ NOT NULL DEFAULT now()
) WITH (fillfactor = 50);
