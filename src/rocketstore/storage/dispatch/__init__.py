"""From the CommitLog into queues and index, and waking those who wait."""
