"""Units of cron jobs: their times, and their checks."""
