"""The runtime: lanes, the runner, the outbox, timers, waits and their supervisor."""
