"""Delivery: channels, receipts, drafts, and splitting of long texts."""
