"""Money: budgets, what a call may cost, and the texts that people read about it."""
