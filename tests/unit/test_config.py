"""config: 4.9's options under correct names, their limits, and where a value comes from."""

import contextlib
import enum
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstore.broker.settings import BROKER_KEYS as OUR_BROKER_KEYS
from rocketstore.config import (
    BrokerRole,
    FlushDiskType,
    RecoveryPolicy,
    StoreConfig,
    StoreSizes,
    commit_log_directories,
    load_config,
    parse_delay_levels,
    resolve_sizes,
)
from rocketstore.config.grammars import parse_delete_hours
from rocketstore.config.option import broker_conf_key
from rocketstore.config.sources import (
    BROKER_KEYS,
    KEYS_WITHOUT_EFFECT,
    Origin,
    from_properties,
    load_broker_conf,
)
from rocketstore.config.store_config import FIELD_OF_KEY, FIELDS, field_texts
from rocketstore.errors import ArgumentError, ConfigError
from support.golden import golden_case
from support.option_rows import COLUMNS, option_rows
from support.page_tables import tables
from support.repository import ROOT

# All options of 4.9.3's MessageStoreConfig with their defaults (spec B23), as broker.conf has them.
JAVA_DEFAULTS = """
readOnlyCommitLogStorePaths=null enableConsumeQueueExt=false bitMapLengthConsumeQueueExt=64
flushIntervalCommitLog=500 commitIntervalCommitLog=200 useReentrantLockWhenPutMessage=true
flushCommitLogTimed=true flushIntervalConsumeQueue=1000 cleanResourceInterval=10000
deleteCommitLogFilesInterval=100 deleteConsumeQueueFilesInterval=100
destroyMapedFileIntervalForcibly=120000 redeleteHangedFileInterval=120000 deleteWhen=04
diskMaxUsedSpaceRatio=75 fileReservedTime=72 putMsgIndexHightWater=600000 maxMessageSize=4194304
checkCRCOnRecover=true flushCommitLogLeastPages=4 commitCommitLogLeastPages=4
flushLeastPagesWhenWarmMapedFile=4096 flushConsumeQueueLeastPages=2
flushCommitLogThoroughInterval=10000 commitCommitLogThoroughInterval=200
flushConsumeQueueThoroughInterval=60000 maxTransferBytesOnMessageInMemory=262144
maxTransferCountOnMessageInMemory=32 maxTransferBytesOnMessageInDisk=65536
maxTransferCountOnMessageInDisk=8 accessMessageInMemoryMaxRatio=40 messageIndexEnable=true
maxMsgsNumBatch=64 messageIndexSafe=false haListenPort=10912 haSendHeartbeatInterval=5000
haHousekeepingInterval=20000 haTransferBatchSize=32768 haMasterAddress=null
haSlaveFallbehindMax=268435456 brokerRole=ASYNC_MASTER flushDiskType=ASYNC_FLUSH
syncFlushTimeout=5000 slaveTimeout=3000 flushDelayOffsetInterval=10000 cleanFileForciblyEnable=true
warmMapedFileEnable=false offsetCheckInSlave=false debugLockEnable=false duplicationEnable=false
diskFallRecorded=true osPageCacheBusyTimeOutMills=1000 defaultQueryMaxNum=32
transientStorePoolEnable=false transientStorePoolSize=5 fastFailIfNoBufferInStorePool=false
enableDLegerCommitLog=false enableScheduleMessageStats=true enableLmq=false
enableMultiDispatch=false maxLmqConsumeQueueNum=20000 enableScheduleAsyncDeliver=false
scheduleAsyncDeliverMaxPendingLimit=2000 scheduleAsyncDeliverMaxResendNum2Blocked=3
flushConsumerOffsetInterval=5000 transactionCheckInterval=60000 transactionTimeOut=6000
transactionCheckMax=15
enableCalcFilterBitMap=false expectConsumerNumUseFilter=32 maxErrorRateOfBloomFilter=20
"""
# Those whose default depends on other things: the root, the files, or a text with blanks.
JAVA_OTHERS = {
    "haListenPort", "storePathRootDir", "storePathCommitLog", "mappedFileSizeCommitLog",
    "mappedFileSizeConsumeQueue", "mappedFileSizeConsumeQueueExt", "maxHashSlotNum", "maxIndexNum",
    "messageDelayLevel",
}  # fmt: skip


def _java_text(value):
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value.value if isinstance(value, enum.Enum) else value)


def test_every_option_of_java_is_there_with_java_s_default():
    java = dict(pair.split("=") for pair in JAVA_DEFAULTS.split())
    ours = {spec.key: _java_text(spec.default) for spec in FIELDS.values() if not spec.option.ours}
    with_effect = set(java) - KEYS_WITHOUT_EFFECT - JAVA_OTHERS
    assert set(ours) == with_effect | JAVA_OTHERS
    assert set(java) >= KEYS_WITHOUT_EFFECT
    assert {key: ours[key] for key in with_effect} == {key: java[key] for key in with_effect}
    assert parse_delay_levels(StoreConfig().message_delay_level)[18] == 7_200_000


def test_sizes_without_files_are_java_s():
    assert resolve_sizes(StoreConfig()) == StoreSizes(
        1_073_741_824, 6_000_000, 5_000_000, 20_000_000
    )
    assert resolve_sizes(StoreConfig()).index_layout.size_bytes == 420_000_040


def test_page_has_the_options_of_the_module():
    page = [
        tuple(row[column] for column in COLUMNS)
        for table in tables("reference/configuration.md")
        if set(COLUMNS) <= set(table[0])
        for row in table
    ]
    assert page == option_rows()
    compatibility = (ROOT / "docs" / "compatibility.md").read_text("utf-8")
    [said] = re.findall(r"keys of our own or of 5\.x: (.*?) \(", compatibility)
    ours = [f"`{spec.key}`" for spec in FIELDS.values() if spec.option.ours]
    assert sorted(said.split(", ")) == sorted(ours)


def test_every_option_has_a_sentence_and_a_unit():
    texts = field_texts()
    for field, spec in FIELDS.items():
        assert re.fullmatch(r"[A-Z0-9].*\.|.*\.", texts[field]), field
        assert len(texts[field]) > 10, field
        assert spec.option.unit, field


def test_fields_are_correctly_spelt_and_keys_are_java_s():
    assert broker_conf_key("destroy_mapped_file_interval_forcibly") == (
        "destroyMapedFileIntervalForcibly"
    )
    assert "warm_mapped_file_enable" in FIELDS
    assert FIELD_OF_KEY["osPageCacheBusyTimeOutMills"] == "os_page_cache_busy_time_out_mills"
    assert msgspec.to_builtins(StoreConfig(), enc_hook=str)["warmMapedFileEnable"] is False


def test_no_store_option_is_taken_for_another_part_s():
    assert not (BROKER_KEYS | KEYS_WITHOUT_EFFECT) & set(FIELD_OF_KEY)


def test_a_conf_for_our_broker_is_taken_by_every_command_without_a_warning(tmp_path):
    conf = tmp_path / "broker.conf"
    conf.write_text("".join(f"{key} = 0\n" for key in OUR_BROKER_KEYS - {"brokerIP1"}))
    assert load_config(environment={}, broker_conf=conf).warnings == ()


def test_the_page_names_every_key_without_effect():
    page = (ROOT / "docs/reference/configuration.md").read_text("utf-8")
    section = page.partition("## Known, and without effect")[2]
    assert set(re.findall(r"`([a-z][A-Za-z0-9]+)`", section)) == KEYS_WITHOUT_EFFECT


@pytest.fixture
def path(tmp_path):
    return tmp_path / "broker.conf"


@pytest.mark.parametrize("key", sorted(KEYS_WITHOUT_EFFECT | {"useReentrantLockWhenPutMessage"}))
def test_a_key_without_effect_is_taken_whatever_it_says(key, path):
    path.write_text(f"{key}=something\n")
    loaded = load_config(broker_conf=path, environment={})
    assert loaded.config == StoreConfig(retention=True)
    assert loaded.warnings == ()
    assert load_config(environment={}, overrides=[f"{key}=1"]).warnings == (
        f"--set {key}: an option of 4.9's store that has no effect here",
    )


def test_config_is_a_value():
    assert StoreConfig() == StoreConfig()
    with pytest.raises(AttributeError):
        StoreConfig().max_message_size = 5


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_message_size", 9),
        ("max_message_size", 2**31),
        ("mapped_file_size_commit_log", 0),
        ("mapped_file_size_consume_queue", 19),
        ("max_index_num", 1),
        ("disk_space_warning_level_ratio", 1.01),
        ("disk_space_warning_level_ratio", float("nan")),
        ("disk_space_clean_forcibly_ratio", -0.1),
        ("access_message_in_memory_max_ratio", 101),
        ("flush_interval_commit_log", 0),
    ],
)
def test_value_out_of_range_names_key_value_and_limit(field, value):
    with pytest.raises(ConfigError, match=re.escape(f"{broker_conf_key(field)}={value}")) as caught:
        StoreConfig(**{field: value})
    assert caught.value.key == broker_conf_key(field)
    assert "out of range" in caught.value.message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_message_size", "5"),
        ("max_message_size", True),
        ("max_message_size", None),
        ("flush_disk_type", "SYNC_FLUSH"),
        ("retention", 1),
        ("delete_when", None),
        ("disk_space_warning_level_ratio", "0.9"),
    ],
)
def test_value_of_another_type_is_refused(field, value):
    with pytest.raises(ConfigError, match="must be") as caught:
        StoreConfig(**{field: value})
    assert (value == "SYNC_FLUSH") == ("; give a FlushDiskType" in str(caught.value))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("store_host", "localhost:10911"),
        ("store_host", "127.0.0.1"),
        ("store_host", "127.0.0.1:65536"),
        ("store_host", "::1:10911"),
        ("store_host", "[127.0.0.1]:1"),
        ("store_host", "[[::1]]:1"),
        ("store_host", "[fe80::1%eth0]:1"),
        ("store_host", ""),
        ("delete_when", "24"),
        ("delete_when", "4;x"),
        ("delete_when", ";"),
        ("delete_when", " ; "),
        ("message_delay_level", "1s 5"),
        ("message_delay_level", "1s 53375995584d"),
        ("multi_path_splitter", ""),
        ("enable_d_ledger_commit_log", True),
    ],
)
def test_text_that_cannot_be_used_is_refused_at_once(field, value):
    with pytest.raises(ConfigError) as caught:
        StoreConfig(**{field: value})
    assert caught.value.key == broker_conf_key(field)


@pytest.mark.parametrize("host", ["127.0.0.1:0", "[::1]:10911", "[2001:db8::1]:65535"])
def test_store_host_is_an_address_and_a_port(host):
    assert StoreConfig(store_host=host).store_host == host


@pytest.mark.parametrize(("given_ratio", "used"), [(0, 10), (-5, 10), (75, 75), (96, 95)])
def test_disk_ratio_is_clamped_as_java_does(given_ratio, used):
    assert StoreConfig(disk_max_used_space_ratio=given_ratio).disk_max_used_space_percent == used


def test_golden_broker_conf_is_read_as_it_is():
    loaded = load_config(broker_conf=golden_case("broker") / "broker.conf", environment={})
    config = loaded.config
    assert config.mapped_file_size_commit_log == 65_536
    assert config.mapped_file_size_consume_queue == 2000
    assert (config.max_hash_slot_num, config.max_index_num) == (500, 2000)
    assert config.max_message_size == 65_536
    assert config.store_host == "127.0.0.1:20911"
    assert config.flush_disk_type is FlushDiskType.ASYNC_FLUSH
    assert config.broker_role is BrokerRole.ASYNC_MASTER
    assert loaded.warnings == ()


def test_origin_of_each_value_is_the_last_source_that_sets_it(path):
    path.write_text("maxMessageSize = 1000\nfileReservedTime:48\nflushDiskType SYNC_FLUSH\n")
    loaded = load_config(
        broker_conf=path,
        environment={
            "ROCKETSTORE_FLUSH_DISK_TYPE": "ASYNC_FLUSH",
            "ROCKETSTORE_FILE_RESERVED_TIME": "24",
            "ROCKETSTORE_KERNELS": "off",
            "HOME": "/",
        },
        overrides=["fileReservedTime=12", "retention = FALSE"],
    )
    config = loaded.config
    assert (config.max_message_size, config.file_reserved_time) == (1000, 12)
    assert config.flush_disk_type is FlushDiskType.ASYNC_FLUSH
    assert config.retention is False
    origins = loaded.origins
    assert list(origins) == [spec.key for spec in FIELDS.values()]
    assert origins["maxMessageSize"] == Origin("file", str(path))
    assert str(origins["flushDiskType"]) == "environment ROCKETSTORE_FLUSH_DISK_TYPE"
    assert str(origins["fileReservedTime"]) == "flag --set"
    assert str(origins["deleteWhen"]) == "default"


def test_without_sources_everything_is_default(monkeypatch):
    monkeypatch.setenv("ROCKETSTORE_FLUSH_DISK_TYPE", "SYNC_FLUSH")
    loaded = load_config(environment={})
    assert loaded.config == StoreConfig()
    assert not loaded.config.is_sync_flush
    assert set(loaded.origins.values()) == {Origin("default")}
    assert load_config().config.is_sync_flush


def test_properties_file_follows_java_s_rules(path):
    path.write_bytes(b"# comment\n! too\ndeleteWhen = 0\\\n   4\nbrokerName=M\xfcnchen \\u4e2d\n\n")
    assert load_broker_conf(path) == {"deleteWhen": "04", "brokerName": "München 中"}


def test_an_editor_s_mark_is_not_part_of_the_first_key(path):
    path.write_bytes(b"\xef\xbb\xbfdeleteWhen=05\r\nfileReservedTime=1\r\n")
    assert load_broker_conf(path) == {"deleteWhen": "05", "fileReservedTime": "1"}


@pytest.mark.parametrize("content", [None, b"a=\\u12", "deleteWhen=05".encode("utf-16")])
def test_unreadable_properties_file_is_a_config_error(content, path):
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=re.escape(str(path))):
        load_broker_conf(path)


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("flushDisktype", "flushDiskType"),
        ("flush_disk_type", "flushDiskType"),
        ("destroyMappedFileIntervalForcibly", "destroyMapedFileIntervalForcibly"),
        ("mapedFileSizeCommitlog", "mappedFileSizeCommitLog"),
        ("putMsgIndexHighWater", "putMsgIndexHightWater"),
        ("haListnPort", "haListenPort"),
    ],
)
def test_unknown_key_is_an_error_that_names_the_nearest(key, nearest):
    with pytest.raises(ConfigError, match=f"{key} is not an option; did you mean {nearest}"):
        from_properties({key: "1"})
    with pytest.raises(ConfigError, match=nearest):
        load_config(environment={}, overrides=[f"{key}=1"])


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("brokerNam", "brokerName"),
        ("brokerIp1", "brokerIP1"),
        ("autoCreateTopicEnabel", "autoCreateTopicEnable"),
        ("AUTOcreatetopicenable", "autoCreateTopicEnable"),
    ],
)
def test_a_key_that_is_nearly_one_of_the_caller_s_is_misspelt_too(tmp_path, key, nearest):
    theirs = {"brokerName", "brokerIP1", "autoCreateTopicEnable", "waitTimeMillsInPullQueue"}
    path = tmp_path / "broker.conf"
    path.write_text(f"{key}=x\n")
    with pytest.raises(ConfigError, match=f"did you mean {nearest}"):
        load_config(broker_conf=path, environment={}, others=theirs)
    with pytest.raises(ConfigError, match=f"did you mean {nearest}"):
        load_config(environment={}, overrides=[f"{key}=x"], others=theirs)
    path.write_text("waitTimeMillsInLitePullQueue=5\n")  # of RocketMQ 5
    assert load_config(broker_conf=path, environment={}, others=theirs).warnings


KEYS_OF_OTHER_VERSIONS = (
    "checkTransactionMessageEnable", "accessMessageInMemoryHotRatio", "mappedFileSizeTimerLog",
    "timerWheelEnable", "enableControllerMode", "enableSlaveActingMaster", "popPollingSize",
    "storePathEpochFile", "writeIntoNowhere", "readUnCommitted",
)  # fmt: skip
"""Of the seeds, of brokers before 4.9, of 5.3.1 (the nearest to ours), of a plug-in."""


@pytest.mark.parametrize("key", KEYS_OF_OTHER_VERSIONS)
def test_a_broker_conf_may_hold_keys_of_any_other_version_and_each_is_named(key, path):
    other_parts = "namesrvAddr=x:9876\naclEnable=true\ndLegerGroup=g\n"
    path.write_text(f"{key}=true\nmaxMessageSize=77\n{other_parts}")
    loaded = load_config(broker_conf=path, environment={})
    assert loaded.config == StoreConfig(max_message_size=77, retention=True)
    [warning] = loaded.warnings
    assert warning.startswith(f"{path}: {key} is ")
    assert warning.endswith("and is ignored")


COPIED = """\
mapedFileSizeCommitLog=1073741824
mapedFileSizeConsumeQueue=300000
storePathConsumeQueue=/store/consumequeue
storePathIndex=/store/index
storeCheckpoint=/store/checkpoint
abortFile=/store/abort
checkTransactionMessageEnable=false
tranStateTableMapedFileSize=1
diskMaxUsedSpaceRatio=88
brokerIP1=
"""
"""What tutorials of 4.0 to 4.2 have handed on."""


def test_a_broker_conf_of_4_2_is_taken_without_its_sizes_and_each_old_key_is_named_once(path):
    path.write_text(COPIED)
    loaded = load_config(broker_conf=path, environment={})
    assert loaded.config == StoreConfig(disk_max_used_space_ratio=88, retention=True)
    named = [warning.split()[1] for warning in loaded.warnings]
    old = [line.partition("=")[0] for line in COPIED.splitlines()[:-2]]
    assert sorted(named) == sorted(old)
    assert all("RocketMQ 3 to 4.2" in warning for warning in loaded.warnings)
    for key in old:  # typed, it is meant
        with pytest.raises(ConfigError, match=key):
            load_config(environment={}, overrides=[f"{key}=1"])


def test_a_flag_of_the_broker_is_taken_and_said_to_have_no_effect():
    flags = ["aclEnable=true", "listenPort=5", "maxMessageSize=77"]
    loaded = load_config(environment={}, overrides=flags)
    assert loaded.config == StoreConfig(max_message_size=77)
    said = "an option of a broker, which a store does not have"
    assert loaded.warnings == (f"--set aclEnable: {said}", f"--set listenPort: {said}")
    known = OUR_BROKER_KEYS | {"aclEnable"}
    assert load_config(environment={}, overrides=flags, others=known).warnings == ()


def test_the_broker_s_address_as_a_flag_is_the_store_s_host(tmp_path):
    flags = ["brokerIP1=10.0.0.1", "listenPort=5"]
    loaded = load_config(environment={}, overrides=flags)
    assert loaded.config.store_host == "10.0.0.1:5"
    assert str(loaded.origins["storeHost"]) == "flag --set"
    assert loaded.warnings == ()
    path = tmp_path / "broker.conf"
    path.write_text("brokerIP1=10.0.0.2\nlistenPort=6\n")
    loaded = load_config(broker_conf=path, environment={}, overrides=flags[1:])
    assert loaded.config.store_host == "10.0.0.2:5"


@pytest.mark.parametrize(
    ("properties", "host"),
    [
        ({"brokerIP1": "10.0.0.1"}, "10.0.0.1:10911"),
        ({"brokerIP1": " 10.0.0.1 ", "listenPort": "5"}, "10.0.0.1:5"),
        ({"brokerIP1": "::1", "listenPort": "5"}, "[::1]:5"),
        ({"brokerIP1": "localhost", "listenPort": "5"}, "127.0.0.1:5"),
        ({"listenPort": "5"}, "127.0.0.1:10911"),
        ({"brokerIP1": "10.0.0.1", "storeHost": "10.0.0.2:1"}, "10.0.0.2:1"),
    ],
)
def test_store_host_is_the_broker_s_address(properties, host):
    assert from_properties(properties).store_host == host


def test_broker_address_that_nobody_knows_or_with_an_invalid_port_is_refused_by_its_key():
    with pytest.raises(ConfigError, match=r"brokerIP1=nobody\.invalid: "):
        from_properties({"brokerIP1": "nobody.invalid"})
    with pytest.raises(ConfigError, match=r"storeHost=10\.0\.0\.1:x: .*listenPort .* give it"):
        from_properties({"brokerIP1": "10.0.0.1", "listenPort": "x"})


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("maxMessageSize", "4 MiB"),
        ("maxMessageSize", "1_000"),
        ("maxMessageSize", ""),
        ("maxMessageSize", "\u0663"),
        ("maxMessageSize", "9" * 30),
        ("flushDiskType", "sync_flush"),
        ("retention", "yes"),
        ("diskSpaceWarningLevelRatio", "90%"),
        ("diskSpaceWarningLevelRatio", "nan"),
    ],
)
def test_text_that_is_no_value_names_key_and_text(key, text):
    with pytest.raises(ConfigError, match="expected") as caught:
        from_properties({key: text})
    assert (caught.value.key, caught.value.value) == (key, text)


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("maxMessageSize", " +77 ", 77),
        ("diskMaxUsedSpaceRatio", "-5", -5),
        ("retention", "True", True),
        ("diskSpaceWarningLevelRatio", ".5", 0.5),
        ("diskSpaceWarningLevelRatio", "1", 1.0),
        ("recoveryPolicy", "compatible", RecoveryPolicy.COMPATIBLE),
        ("haMasterAddress", " ", None),
        ("multiPathSplitter", ";", ";"),
    ],
)
def test_texts_become_values_of_their_type(key, text, value):
    assert getattr(from_properties({key: text}), FIELD_OF_KEY[key]) == value


@given(st.sampled_from(sorted(FIELD_OF_KEY)), st.text(max_size=12))
def test_any_text_is_a_value_or_a_config_error(key, text):
    with contextlib.suppress(ConfigError):
        assert isinstance(from_properties({key: text}), StoreConfig)


@pytest.mark.parametrize(
    ("override", "hint"),
    [*((one, "key=value") for one in ("", "a", "=1", " =1")), ("qqqqqqqqqq=1", "config show")],
)
def test_override_without_key_or_value_or_like_no_option_is_refused(override, hint):
    with pytest.raises(ConfigError, match=hint):
        load_config(environment={}, overrides=[override])


def test_one_text_is_no_list_of_overrides():
    with pytest.raises(ArgumentError, match=r"overrides: expected Iterable\[str\], found"):
        load_config(environment={}, overrides="flushDiskType=SYNC_FLUSH")


def test_later_override_wins_and_a_value_may_hold_an_equals_sign():
    flags = ["deleteWhen=04", "deleteWhen=05", "storePathCommitLog=/a=b"]
    config = load_config(environment={}, overrides=flags).config
    assert (config.delete_when, config.store_path_commit_log) == ("05", "/a=b")


@pytest.mark.parametrize(("text", "hours"), [("04", {4}), ("4;16; 23;", {4, 16, 23})])
def test_delete_when_is_a_list_of_hours(text, hours):
    assert parse_delete_hours(text) == hours


TEXT_OPTIONS = sorted(
    key
    for key, field in FIELD_OF_KEY.items()
    if FIELDS[field].kind is str and key != "haMasterAddress"
)
"""A running 4.9 broker may have an empty haMasterAddress; of the others it makes something odd."""


@pytest.mark.parametrize("key", TEXT_OPTIONS)
@pytest.mark.parametrize("text", ["", " \t"])
def test_an_option_without_a_value_is_refused_by_name_wherever_it_stands(key, text, path):
    path.write_text(f"{key}={text}\n")
    variable = "ROCKETSTORE_" + FIELD_OF_KEY[key].upper()
    for place, load in {
        f"{path}: ": lambda: load_config(broker_conf=path, environment={}),
        f"{variable}: ": lambda: load_config(broker_conf=path, environment={variable: text}),
        "": lambda: load_config(broker_conf=path, environment={}, overrides=[f"{key}={text}"]),
        "()": lambda: StoreConfig(**{FIELD_OF_KEY[key]: text}),
    }.items():
        with pytest.raises(ConfigError, match=f"^{place}{key}.*no value") as caught:
            load()
        assert caught.value.key == key


@pytest.mark.parametrize(
    "text", ["1", "s", "1S", "-1s", "1.5h", "1s,5s", "\u0663s", "1" * 13 + "s"]
)
def test_invalid_delay_is_refused(text):
    with pytest.raises(ConfigError, match="is not a delay"):
        parse_delay_levels(text)


def test_delay_levels_have_four_units():
    assert parse_delay_levels("2s 2m  2h 2d") == {1: 2000, 2: 120_000, 3: 7_200_000, 4: 172_800_000}


@pytest.mark.parametrize(
    ("options", "writable", "read_only"),
    [
        ({}, ["/s/commitlog"], []),
        ({"store_path_commit_log": "/a,/b"}, ["/a", "/b"], []),
        ({"store_path_commit_log": " /a , ,/a"}, ["/a"], []),
        ({"store_path_commit_log": "/a:/b", "multi_path_splitter": ":"}, ["/a", "/b"], []),
        (
            {"store_path_commit_log": "/a,/b", "read_only_commit_log_store_paths": "/b,/c"},
            ["/a"],
            ["/b", "/c"],
        ),
        (
            {"store_path_root_dir": "/old", "store_path_commit_log": "/old/commitlog,/x"},
            ["/s/commitlog", "/x"],
            [],
        ),
        ({"store_path_root_dir": "/old", "store_path_commit_log": "/older/c"}, ["/older/c"], []),
    ],
)
def test_commit_log_may_lie_in_several_directories(options, writable, read_only):
    found = commit_log_directories(StoreConfig(**options), Path("/s"))
    assert [[str(path) for path in paths] for paths in found] == [writable, read_only]
