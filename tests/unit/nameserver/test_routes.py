"""The table of routes: what registrations say, and how long it counts."""

import pytest

from rocketstore.format.metadata_json import DataVersion, TopicConfig, TopicTable
from rocketstore.format.registration import RegisterBrokerBody
from rocketstore.nameserver.headers import BrokerHeader, DeleteTopicHeader, RegisterBrokerHeader
from rocketstore.nameserver.routes import READ, SUB, UNIT, WRITE, RouteTable

A, B = "10.0.0.1:10911", "10.0.0.2:10911"


def header(name="a", address=A, broker_id=0, cluster="c", **more):
    return RegisterBrokerHeader(
        broker_name=name, broker_addr=address, cluster_name=cluster, broker_id=broker_id, **more
    )


def body(*topics, version=1, **settings):
    table = {one: TopicConfig(topic_name=one, **settings) for one in topics}
    return RegisterBrokerBody([], TopicTable(DataVersion(version, 0), table))


def registered(*topics, **settings):
    routes = RouteTable()
    routes.register(header(), body(*topics, **settings), "channel", 0)
    return routes


@pytest.fixture
def routes():
    return registered("T")


def queues_of(routes, topic):
    route = routes.route(topic)
    return [] if route is None else [(q.broker_name, q.write_queue_nums) for q in route.queue_datas]


def test_a_topic_leads_to_its_queues_and_their_brokers():
    routes = registered("T", read_queue_nums=3, write_queue_nums=2, perm=6, topic_sys_flag=1)
    route = routes.route("T")
    [queue] = route.queue_datas
    assert (queue.broker_name, queue.perm, queue.read_queue_nums) == ("a", 6, 3)
    assert (queue.write_queue_nums, queue.topic_sys_flag) == (2, 1)
    [broker] = route.broker_datas
    assert (broker.broker_name, broker.cluster, broker.broker_addrs) == ("a", "c", {0: A})
    assert route.filter_server_table == {}
    assert routes.route("U") is None


def test_a_topic_on_several_brokers_has_the_queues_of_all(routes):
    routes.register(header("b", B), body("T", "U", write_queue_nums=4), "other", 0)
    assert queues_of(routes, "T") == [("a", 16), ("b", 4)]
    assert queues_of(routes, "U") == [("b", 4)]
    assert routes.clusters().cluster_addr_table == {"c": ["a", "b"]}
    assert routes.topics() == ["T", "U"]


def test_only_another_version_of_a_master_changes_queues():
    routes = registered("T", write_queue_nums=4)
    routes.register(header(), body("T", write_queue_nums=8), "channel", 0)
    assert queues_of(routes, "T") == [("a", 4)]
    routes.register(header(address=B, broker_id=1), body("T", version=9), "slave", 0)
    assert queues_of(routes, "T") == [("a", 4)]
    routes.register(header(), body("T", write_queue_nums=8, version=2), "channel", 0)
    assert queues_of(routes, "T") == [("a", 8)]


def test_a_topic_that_a_broker_lost_stays_until_it_is_deleted():
    routes = registered("T", "U")
    routes.register(header(), body("U", version=2), "channel", 0)
    assert routes.topics() == ["T", "U"]
    routes.delete_topic(DeleteTopicHeader("T"))
    assert routes.topics() == ["U"]
    assert routes.route("T") is None


def test_a_topic_is_deleted_for_the_brokers_of_one_cluster_or_all(routes):
    routes.register(header("b", B, cluster="d"), body("T"), "other", 0)
    for cluster, left in (("none", ["a", "b"]), ("c", ["b"]), ("d", []), ("d", [])):
        routes.delete_topic(DeleteTopicHeader("T", cluster))
        assert [name for name, _ in queues_of(routes, "T")] == left
    routes.register(header("b", B, cluster="d"), body("T"), "other", 0)
    routes.delete_topic(DeleteTopicHeader("T", ""))
    assert routes.topics() == []


def test_a_topic_that_is_not_known_is_taken_whatever_the_version():
    """A broker that makes a topic tells of it alone, be it the first that a name server hears."""
    routes = registered("new", version=2)
    routes.register(header(), body("T", "U", "new", version=2), "channel", 0)
    assert routes.topics() == ["new", "T", "U"]
    routes.delete_topic(DeleteTopicHeader("T"))
    routes.register(header(), body("T", "U", "new", version=2), "channel", 0)
    assert queues_of(routes, "T") == [("a", 16)]


def test_a_broker_of_another_name_takes_the_place_of_who_had_its_address(routes, caplog):
    """A consumer would have the same queues twice, by two names."""
    routes.register(header("b", B), body("T"), "other", 0)
    routes.register(header("renamed"), body("T"), "channel", 0)
    assert [one.split(" next")[0] for one in caplog.messages] == [
        f"broker.renamed name=renamed former=a address={A}"
    ]
    assert queues_of(routes, "T") == [("b", 16), ("renamed", 16)]
    assert routes.clusters().cluster_addr_table == {"c": ["b", "renamed"]}
    routes.unregister(header())
    assert queues_of(routes, "T") == [("b", 16), ("renamed", 16)]


def test_a_broker_that_comes_back_in_another_cluster_is_of_that_one_alone(routes):
    routes.register(header(cluster="d"), body("T"), "channel", 0)
    assert routes.clusters().cluster_addr_table == {"d": ["a"]}
    assert [routes.topics_of_cluster(one) for one in "cd"] == [[], ["T"]]


def test_a_slave_is_named_beside_its_master(routes):
    routes.register(header(address=B, broker_id=1), body(), "slave", 0)
    assert routes.route("T").broker_datas[0].broker_addrs == {0: A, 1: B}


def test_a_slave_that_becomes_master_keeps_one_place():
    routes = RouteTable()
    routes.register(header(address=B, broker_id=1), body("T"), "channel", 0)
    assert routes.topics() == []
    routes.register(header(address=B), body("T"), "channel", 0)
    assert routes.route("T").broker_datas[0].broker_addrs == {0: B}


@pytest.mark.parametrize(("now_ms", "gone"), [(120_000, []), (120_001, [A])])
def test_a_broker_that_is_silent_for_more_than_120_s_is_gone(now_ms, gone, routes):
    assert routes.expire(now_ms) == gone
    assert (routes.route("T") is None) is bool(gone)
    assert routes.clusters().broker_addr_table.keys() == ({"a"} if not gone else set())


def test_a_broker_that_has_nothing_new_is_heard_of(routes):
    routes.touch(A, "new channel", 100_000)
    routes.disconnected("channel")  # it was left half open, say
    assert routes.expire(220_000) == []
    assert routes.expire(220_001) == [A]


def test_an_end_of_its_connection_takes_a_broker_at_once(routes):
    routes.register(header("b", B), body("T"), "other", 0)
    routes.disconnected("channel")
    assert queues_of(routes, "T") == [("b", 16)]
    routes.disconnected("other")
    assert (routes.topics(), routes.clusters().broker_addr_table) == ([], {})


def test_an_old_connection_of_a_broker_that_came_back_takes_nothing(routes):
    routes.register(header(), body("T"), "new channel", 0)
    routes.disconnected("channel")
    assert queues_of(routes, "T") == [("a", 16)]


def test_a_slave_that_goes_leaves_its_master_and_its_queues(routes):
    routes.register(header(address=B, broker_id=1), body(), "slave", 0)
    routes.unregister(BrokerHeader(broker_name="a", broker_addr=B, cluster_name="c", broker_id=1))
    assert routes.route("T").broker_datas[0].broker_addrs == {0: A}
    routes.unregister(header(broker_id=1))  # what it was until it became the master
    assert routes.version_of(A) == DataVersion(1, 0)
    routes.unregister(header())
    routes.unregister(header())
    assert routes.topics() == []


def test_a_broker_that_ends_takes_no_successor_along(routes, caplog):
    """A broker that moves may begin at its new address before it ends at the old one."""
    routes.register(header(address=B), body("T"), "new", 0)
    routes.register(header(address=B), body("T"), "new", 0)
    assert [one.split(" next")[0] for one in caplog.messages] == [
        f"broker.replaced name=a former={A} address={B}"
    ]
    routes.unregister(header())
    routes.disconnected("channel")
    assert routes.route("T").broker_datas[0].broker_addrs == {0: B}
    routes.unregister(header(address=B))
    assert routes.topics() == []


def test_a_broker_that_comes_back_brings_its_queues_with_the_version_it_had(routes):
    routes.unregister(header())
    assert routes.version_of(A) is None
    routes.register(header(), body("T"), "channel", 0)
    assert routes.version_of(A) == DataVersion(1, 0)
    assert queues_of(routes, "T") == [("a", 16)]


def test_permissions_change_for_all_topics_of_a_broker():
    routes = registered("T", "U", perm=7)
    routes.register(header("b", B), body("T", perm=7), "other", 0)
    assert routes.change_permission("a", lambda perm: perm & ~WRITE) == 2
    assert [queue.perm for queue in routes.route("T").queue_datas] == [5, 7]
    assert routes.change_permission("a", lambda _: READ | WRITE) == 2
    assert [queue.perm for queue in routes.route("T").queue_datas] == [6, 7]
    assert routes.change_permission("none", lambda _: 0) == 0


def test_topics_are_listed_by_cluster_and_by_flags():
    routes = registered("plain")
    for number, flags in enumerate((UNIT, SUB, UNIT | SUB)):
        more = body(f"flags {flags}", topic_sys_flag=flags)
        routes.register(header(f"b{number}", f"h:{number}", cluster="d"), more, number, 0)
    routes.register(header("b", "h", cluster="d"), body("plain"), "other", 0)
    assert routes.topics_of_cluster("c") == ["plain"]
    assert routes.topics_of_cluster("none") == []
    assert routes.topics(UNIT) == ["flags 1", "flags 3"]
    assert routes.topics(SUB) == ["flags 2", "flags 3"]
    assert routes.topics(SUB, UNIT) == ["flags 2"]


def test_filter_servers_are_sent_with_the_route():
    routes = RouteTable()
    registration = body("T")
    registration.filter_server_list = ["10.0.0.9:1"]
    routes.register(header(), registration, "channel", 0)
    assert routes.route("T").filter_server_table == {A: ["10.0.0.9:1"]}
