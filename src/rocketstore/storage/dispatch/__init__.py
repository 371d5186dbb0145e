"""From the CommitLog into queues and index, and telling who waits."""
