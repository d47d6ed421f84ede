"""Contact with chats beyond plain texts: questions to owners, files, proofs."""
