"""Questions to owners, and the chats where they are asked."""
