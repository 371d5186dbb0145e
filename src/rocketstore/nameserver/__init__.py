"""The name server: which broker has which topic.

Brokers register with it, clients ask it::

    rocketstore serve namesrv --port 9876

`routes` is the table of brokers, topics and queues, `key_values` that of named values. `headers`
and `bodies` are what requests carry, `requests` is who answers which, and `service` listens.

Law: time is passed in. A broker that is silent for two minutes is gone, and so is what it had.
How derived: RouteInfoManager, KVConfigManager and DefaultRequestProcessor of 4.9.7, its last one.
"""
