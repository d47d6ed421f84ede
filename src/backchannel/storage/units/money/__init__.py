"""Money: the ledger of budgets, reservations of calls, and questions to owners."""
