"""One gateway among others on the same database: lease, duties, echoes, streams and pictures."""
