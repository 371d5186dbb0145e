"""ConsumeQueues: written by dispatch, read by consumers."""
