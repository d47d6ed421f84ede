-- Two tables that no version has read or written: whoever works beside this does not miss them.
-- additive
DROP TABLE leases;
DROP TABLE channel_state;
