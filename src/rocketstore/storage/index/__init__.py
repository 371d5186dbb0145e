"""The key index: its files and what they answer."""
