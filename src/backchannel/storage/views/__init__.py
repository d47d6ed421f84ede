"""Views: queries that only read."""
