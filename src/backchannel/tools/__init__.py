"""Session tools: the functions by which agents and doors see and reach sessions."""
