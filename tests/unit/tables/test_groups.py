"""subscriptionGroup.json: what was settled for a consumer group (spec F13)."""

import pytest

from rocketstore import FormatError
from rocketstore.format.metadata_json import SubscriptionGroup, loads
from rocketstore.storage.layout import StoreLayout
from rocketstore.tables.groups import SubscriptionGroups
from support.golden_stores import golden_root


def test_groups_are_those_of_the_file_and_of_4_9_s_defaults_where_it_says_nothing(tmp_path):
    golden = golden_root("broker")
    groups = SubscriptionGroups(StoreLayout.of(golden))
    assert groups.get("golden_group").group_name == "golden_group"
    new = SubscriptionGroups(StoreLayout.of(tmp_path)).get("new")
    assert (new.group_name, new.retry_max_times, new.consume_enable) == ("new", 16, True)


def test_the_file_is_read_once_and_asked_for_again_where_it_is_broken(tmp_path):
    groups = SubscriptionGroups(StoreLayout.of(tmp_path))
    path = tmp_path / "config" / "subscriptionGroup.json"
    path.parent.mkdir()
    for _ in range(2):
        path.write_text('{"subscriptionGroupTable":{"g"')
        with pytest.raises(FormatError, match="bring the table back"):
            groups.get("g")
    for limit in (3, 4):
        path.write_text(
            f'{{"subscriptionGroupTable":{{"g":{{"groupName":"g","retryMaxTimes":{limit}}}}}}}'
        )
        assert groups.get("g").retry_max_times == 3


def test_what_a_newer_broker_says_of_a_group_stays_when_that_group_is_settled(tmp_path):
    path = tmp_path / "config" / "subscriptionGroup.json"
    path.parent.mkdir()
    path.write_text(
        '{"dataVersion":{"counter":7,"stateVersion":3},"subscriptionGroupTable":'
        '{"g":{"groupName":"g","groupRetryPolicy":{"type":"CUSTOMIZED"}}}}'
    )
    groups = SubscriptionGroups(StoreLayout.of(tmp_path))
    groups.settle(SubscriptionGroup(group_name="g", retry_max_times=3))
    written = loads(path.read_bytes())
    assert (written["dataVersion"]["counter"], written["dataVersion"]["stateVersion"]) == (8, 3)
    kept = written["subscriptionGroupTable"]["g"]
    assert (kept["groupRetryPolicy"], kept["retryMaxTimes"]) == ({"type": "CUSTOMIZED"}, 3)
    assert groups.table.data_version.counter == 8
    assert groups.get("g").retry_max_times == 3
