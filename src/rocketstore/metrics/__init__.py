"""How a store is watched: its numbers for Prometheus, and the check of its old files.

`endpoint` serves what `families` and `exporter` collect, with ``StoreConfig(metrics_port=5557)``;
`runtime` has what 4.9's broker says of itself; `scrub_service` has `scrub` read old files slowly.

Law: nothing is counted twice, and asking changes nothing. Page: docs/guide/watching.md.
"""
