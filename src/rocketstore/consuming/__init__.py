"""Consuming in process: groups that share queues, acknowledge, give back; puts with a future."""
