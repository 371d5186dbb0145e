"""How a store is watched: its numbers for Prometheus, and the check of its old files.

Each part of a store owns its numbers. With ``StoreConfig(metrics_port=5557)`` they are served by
`endpoint`, as `families` has them or, for boards of rocketmq-exporter, `exporter`. `scrub_service`
has `scrub` read old files slowly.

Law: nothing is counted twice, and asking changes nothing. Page: docs/guide/watching.md.
"""
