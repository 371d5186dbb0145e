"""How a store is watched: its numbers for Prometheus, and the check of its old files.

Each part of a store owns its numbers. `endpoint` serves them as `families` has them or, for boards
of rocketmq-exporter, `exporter`; `scrub_service` has `scrub` read old files slowly::

    with MessageStore.open("data/store", StoreConfig(metrics_port=5557)):
        ...  # Prometheus scrapes port 5557

Law: nothing is counted twice, and asking changes nothing. Page: docs/guide/watching.md.
"""
