"""A broker: clients of RocketMQ, unchanged, send to an open store and consume from it.

It is a service of the store; ``rocketstore serve broker`` runs it, and `testing` has one::

    with MessageStore.open("data/store", services=[BrokerService.with_settings(settings)]):
        ...  # clients whose name server is at its port send and consume

In the order in which a message meets them: `service` has the event loop, `table` says who answers
which code, `sending` puts, `pulling` and `held_pulls` deliver, `giving_back` has a message consumed
again; `client_manage` and `clients` know who is connected, `registration` tells name servers.

Law: whatever has a connection, a client or a held pull runs on one event loop; what may be slow
(`aside`) does not. No rule that the store, `consuming` or `transaction` has stands here again.
Page: docs/how-it-works/broker.md.
"""
