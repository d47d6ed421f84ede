
CREATE TABLE write_locks (
  number BIGINT PRIMARY KEY                            -- 0 for everything, the others for sessions by their hash
);
