"""RocketMQ's remoting protocol: requests and replies over a connection, both ways.

A server is a table of requests, a client asks::

    from rocketstore.remoting import client, codes, requests

    question = requests.request(codes.RequestCode.GET_BROKER_CLUSTER_INFO)
    async with client.RemotingClient() as asking:
        reply = await asking.ask("127.0.0.1:9876", question)

In the order in which bytes become answers: `frame` cuts them, `json_header` and `binary_header`
decode what came, `connection` knows what may happen when, `fields` types a custom header,
`requests` finds who answers; `channel`, `server` and `client` are the only ones that know a socket.

Law: nothing here knows what a request does, nor that there is a store.
Page: docs/how-it-works/remoting.md.
"""
