-- The channel on which a call was asked for: its owners answer. NULL: none, so that only an operator does.
-- additive
ALTER TABLE approvals ADD COLUMN channel TEXT;
UPDATE approvals SET channel = (
  SELECT max(d.channel) FROM deliveries d WHERE d.session_key = approvals.session_key AND d.run_id = approvals.run_id
    AND d.text LIKE '%/approve ' || approvals.id || ' lets it go ahead%'
) WHERE state = 'pending';
