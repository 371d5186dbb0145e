"""The CommitLog: how a message is checked, appended and made durable."""
