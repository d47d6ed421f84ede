-- A post without a sender is known as ours by the id that the platform gave it.
-- additive
CREATE INDEX delivery_parts_message ON delivery_parts (message_id) WHERE message_id IS NOT NULL;
CREATE INDEX delivery_parts_draft ON delivery_parts (draft_id) WHERE draft_id IS NOT NULL;
CREATE INDEX drafts_chat ON drafts (channel, target);
