"""Storage: units of work, tables, databases, and the files that follow commits."""
