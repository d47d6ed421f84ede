"""The bridge: any platform, by two webhooks."""
