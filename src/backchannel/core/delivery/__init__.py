"""Delivery: channels, receipts, drafts, and how a text is split."""
