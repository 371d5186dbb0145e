"""Where options come from: default < ``broker.conf`` < environment < ``--set``.

Law: nothing is dropped in silence. 4.9 ignores a misspelt key and a number that is not one; here
both are a `ConfigError` that names the key, the value and the nearest known key. A key of a
``broker.conf`` that resembles no option of the store is another part's, of this or another version
of RocketMQ, and is ignored: without a word if it is listed below, else with a warning.
Source: rocketmq-all-4.9.8, BrokerStartup and MixAll.properties2Object; the keys are those of
BrokerConfig, NettyServerConfig, NettyClientConfig, MixAll and MessageStoreConfig.
"""

from __future__ import annotations

import codecs
import contextlib
import enum
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from rocketstore.arguments import checked, nearest
from rocketstore.config.option import FieldSpec, kind_name
from rocketstore.config.store_config import FIELD_OF_KEY, FIELDS, StoreConfig
from rocketstore.errors import ConfigError
from rocketstore.format.host import address_text

ENVIRONMENT_PREFIX: Final = "ROCKETSTORE_"
_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_NUMBER: Final = re.compile(r"[+-]?([0-9]{1,19}(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_MISSPELT_RATIO: Final = 0.85
"""A key of a ``broker.conf`` this similar to an option (difflib, 0 to 1) is a misspelt one."""
_ADDRESS_KEYS: Final = frozenset({"brokerIP1", "listenPort"})
"""Keys of the broker that give the store's host (BrokerController.getStoreHost)."""
_EMPTY_IS_UNSET: Final = frozenset({"haMasterAddress"})
"""Options that a running 4.9 broker may have without a value (BrokerController.initialize)."""
_LIKE_OURS: Final = frozenset(
    ("accessMessageInMemoryHotRatio", "waitTimeMillsInAckQueue", "waitTimeMillsInLitePullQueue")
)
"""Options of RocketMQ 5 that are as near to ours as a slip of the pen."""

_BROKER: Final = """
    rocketmqHome namesrvAddr brokerIP1 brokerIP2 brokerName brokerClusterName brokerId
    brokerPermission defaultTopicQueueNums autoCreateTopicEnable clusterTopicEnable
    brokerTopicEnable autoCreateSubscriptionGroup messageStorePlugIn msgTraceTopicName
    traceTopicEnable sendMessageThreadPoolNums putMessageFutureThreadPoolNums
    pullMessageThreadPoolNums processReplyMessageThreadPoolNums queryMessageThreadPoolNums
    adminBrokerThreadPoolNums clientManageThreadPoolNums consumerManageThreadPoolNums
    heartbeatThreadPoolNums endTransactionThreadPoolNums
    flushConsumerOffsetHistoryInterval rejectTransactionMessage fetchNamesrvAddrByAddressServer
    sendThreadPoolQueueCapacity putThreadPoolQueueCapacity pullThreadPoolQueueCapacity
    replyThreadPoolQueueCapacity queryThreadPoolQueueCapacity clientManagerThreadPoolQueueCapacity
    consumerManagerThreadPoolQueueCapacity heartbeatThreadPoolQueueCapacity
    endTransactionPoolQueueCapacity filterServerNums longPollingEnable shortPollingTimeMills
    notifyConsumerIdsChangedEnable highSpeedMode commercialEnable commercialTimerCount
    commercialTransCount commercialBigCount commercialBaseCount transferMsgByHeap maxDelayTime
    regionId registerBrokerTimeoutMills slaveReadEnable disableConsumeIfConsumerReadSlowly
    consumerFallbehindThreshold brokerFastFailureEnable waitTimeMillsInSendQueue
    waitTimeMillsInPullQueue waitTimeMillsInHeartbeatQueue waitTimeMillsInTransactionQueue
    startAcceptSendRequestTimeStamp traceOn filterDataCleanTimeSpan filterSupportRetry
    enablePropertyFilter compressedRegister forceRegister registerNameServerPeriod
    aclEnable storeReplyMessageEnable
    enableDetailStat autoDeleteUnusedStats isolateLogEnable configBlackList
    listenPort serverWorkerThreads serverCallbackExecutorThreads serverSelectorThreads
    serverOnewaySemaphoreValue serverAsyncSemaphoreValue serverChannelMaxIdleTimeSeconds
    serverSocketSndBufSize serverSocketRcvBufSize writeBufferHighWaterMark writeBufferLowWaterMark
    serverSocketBacklog serverPooledByteBufAllocatorEnable useEpollNativeSelector
    clientWorkerThreads clientCallbackExecutorThreads clientOnewaySemaphoreValue
    clientAsyncSemaphoreValue connectTimeoutMillis channelNotActiveInterval
    clientChannelMaxIdleTimeSeconds clientSocketSndBufSize clientSocketRcvBufSize
    clientPooledByteBufAllocatorEnable clientCloseSocketIfTimeout useTLS
    rmqAddressServerDomain rmqAddressServerSubGroup
    dLegerGroup dLegerPeers dLegerSelfId preferredLeaderId enableBatchPush isEnableBatchPush
    storePathDLedgerCommitLog
"""

_WITHOUT_EFFECT: Final = """
    bitMapLengthConsumeQueueExt
    useReentrantLockWhenPutMessage putMsgIndexHightWater debugLockEnable diskFallRecorded
    defaultQueryMaxNum enableScheduleMessageStats
    enableScheduleAsyncDeliver scheduleAsyncDeliverMaxPendingLimit
    scheduleAsyncDeliverMaxResendNum2Blocked duplicationEnable
"""

_OLD: Final = """
    mapedFileSizeCommitLog mapedFileSizeConsumeQueue storePathConsumeQueue storePathIndex
    storePathCheckpoint storeCheckpoint storePathAbort abortFile delayOffsetStorePath
    checkTransactionMessageEnable checkTransactionMessageAtleastInterval
    checkTransactionMessageTimerInterval tranStateTableStorePath tranStateTableMapedFileSize
    tranRedoLogStorePath tranRedoLogMapedFileSize
"""

OLD_KEYS: Final = frozenset(_OLD.split())
"""Options of RocketMQ 3 and 4.0 to 4.2, which 4.9 ignores: the size of a queue file was written as
a count of entries, so none of them is taken for an option of today."""

BROKER_KEYS: Final = frozenset((*_BROKER.split(), "namesrvPort"))
"""Options of other parts of a broker than its store: the broker itself, its network, DLedger; and
the port of the name server in ``rocketstore serve broker``, which 4.9 does not have."""

KEYS_WITHOUT_EFFECT: Final = frozenset(_WITHOUT_EFFECT.split())
"""Options of 4.9's store for things that are done in another way here."""

_IDLE_KEYS: Final = BROKER_KEYS | KEYS_WITHOUT_EFFECT


class Origin(NamedTuple):
    """Where a value comes from.

    `kind` is ``default``, ``file``, ``environment`` or ``flag``; `detail` the path of the file, the
    name of the variable or of the flag.
    """

    kind: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.detail}".rstrip()


class LoadedConfig(NamedTuple):
    """A configuration with the origin of each of its values."""

    config: StoreConfig
    origins: dict[str, Origin]
    """By ``broker.conf`` key, every option included, in the order of `StoreConfig`."""
    warnings: tuple[str, ...]
    """What was ignored, perhaps against the user's intention."""
    in_file: Mapping[str, str]
    """All texts of the ``broker.conf``, by key."""


def load_broker_conf(path: str | os.PathLike[str]) -> dict[str, str]:
    r"""Read a Java properties file; a later duplicate wins.

    Raises
    ------
    ConfigError
        It cannot be read, is in UTF-16, or holds a malformed ``\u`` escape.
    """
    import javaproperties  # noqa: PLC0415 - half the time of numpy's import, and few need it

    try:
        # Bytes are Latin-1, as for java.util.Properties.load(InputStream). An editor's mark in
        # front is not part of the first key, as it is for Java.
        with open(path, "rb") as file:  # noqa: PTH123 - any path-like
            content = file.read()
        if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise ConfigError(f"{os.fspath(path)} is in UTF-16", hint="save it in UTF-8")
        text = content.removeprefix(codecs.BOM_UTF8).decode("latin-1")
        loaded: dict[str, str] = javaproperties.loads(text)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"cannot read {os.fspath(path)}: {reason}") from error
    except ValueError as error:
        raise ConfigError(f"{os.fspath(path)} is not a Java properties file: {error}") from error
    return loaded


def from_properties(properties: Mapping[str, str]) -> StoreConfig:
    """Build a configuration from ``broker.conf`` keys and texts; keys of other parts are ignored.

    Raises
    ------
    ConfigError
        A misspelt key (names the nearest known one), a text that is no value of its option, or a
        value outside its limits.
    """
    values: dict[str, Any] = {}
    for key, text in _with_store_host(properties).items():
        if key in FIELD_OF_KEY:
            field = FIELD_OF_KEY[key]
            values[field] = parse_value(text, FIELDS[field])
        else:
            _note_unknown(key, text)
    return StoreConfig(**values)


@checked
def load_config(
    *,
    broker_conf: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
    overrides: Iterable[str] = (),
    others: Collection[str] = (),
) -> LoadedConfig:
    """Merge all sources and remember where each value comes from.

    Parameters
    ----------
    broker_conf
        A Java properties file (``--config``). It turns retention on, as in the broker it is of,
        unless it, or what comes after it, says ``retention=false``.
    environment
        Variables; None takes those of the process.
    overrides
        Texts ``key=value`` (``--set``); a later duplicate wins.
    others
        Keys that the caller handles itself: no warning is given for them.

    Raises
    ------
    ConfigError
        See `from_properties`; or an override is not of that form, or its key is not an option.
    """
    flags = dict(map(parse_override, overrides))
    theirs = set(others) - _ADDRESS_KEYS
    flags = {key: text for key, text in flags.items() if key not in theirs}
    address = {key: flags.pop(key) for key in flags.keys() & _ADDRESS_KEYS}
    where, said, in_file = Origin("flag", "--set"), {}, {}
    if broker_conf is not None:
        where, said = Origin("file", os.fspath(broker_conf)), load_broker_conf(broker_conf)
        # A broker deletes expired files without a key that says so; other programs have to ask for
        # it.
        in_file = {"retention": "true"} | said
    if "brokerIP1" not in in_file | address:  # a port alone is no store's host
        flags |= {key: text for key, text in address.items() if key not in others}
    idle = sorted(flags.keys() & _IDLE_KEYS)
    warnings = [
        f"--set {key}: an option of a broker, which a store does not have"
        if key in BROKER_KEYS
        else f"--set {key}: an option of 4.9's store that has no effect here"
        for key in idle
    ]
    own = {key: text for key, text in flags.items() if key not in idle}
    for key, text in own.items():
        if key not in FIELD_OF_KEY:
            raise _unknown_key(key, text, others)
    origins = {spec.key: Origin("default") for spec in FIELDS.values()}
    texts: dict[str, str] = {}
    with located(lambda key: Origin("flag") if key in address else where):
        for key, text in _with_store_host(in_file | address).items():
            if key in FIELD_OF_KEY:
                texts[key], origins[key] = text, where
            elif key not in theirs and (warning := _note_unknown(key, text, others)) is not None:
                warnings.append(f"{where.detail}: {warning}")
    variables = os.environ if environment is None else environment
    for field, spec in FIELDS.items():
        variable = ENVIRONMENT_PREFIX + field.upper()
        if variable in variables:
            texts[spec.key] = variables[variable]
            origins[spec.key] = Origin("environment", variable)
    origins |= dict.fromkeys(own, Origin("flag", "--set"))
    with located(lambda key: origins.get(key, Origin("default"))):
        config = from_properties(texts | own)
    return LoadedConfig(config, origins, tuple(warnings), said)


@contextlib.contextmanager
def located(origin_of: Callable[[str], Origin]) -> Iterator[None]:
    """Let an error about an option say which file, or variable, it stands in."""
    try:
        yield
    except ConfigError as error:
        origin = origin_of(error.key or "")
        if origin.kind not in ("file", "environment"):
            raise
        what = f"{origin.detail}: {error.message}"
        raise ConfigError(what, key=error.key, value=error.value, hint=error.hint) from error


def parse_override(override: str) -> tuple[str, str]:
    """Return key and value of a ``key=value``; raises `ConfigError`."""
    key, separator, text = (part.strip() for part in override.partition("="))
    if not (separator and key):
        raise ConfigError(
            f"setting {override!r} is not of the form key=value",
            value=override,
            hint="for example flushDiskType=SYNC_FLUSH",
        )
    return key, text


def _with_store_host(properties: Mapping[str, str]) -> dict[str, str]:
    """Add ``storeHost`` where only the broker's address is given."""
    address = properties.get("brokerIP1", "").strip()
    port = properties.get("listenPort", "10911").strip()
    return ({"storeHost": store_host(address, port)} if address else {}) | dict(properties)


def store_host(address: str, port: object) -> str:
    """Return what records say of a broker at ``brokerIP1`` and ``listenPort``.

    A name is looked up, as Java does; `ConfigError` where it is not known.
    """
    from rocketstore.addresses import resolved  # noqa: PLC0415 - few need it

    try:
        return address_text(address if ":" in address else resolved(address)[1], port)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"brokerIP1={address}: {getattr(error, 'strerror', error)}",
            key="brokerIP1",
            value=address,
            hint="give an address of this machine, or a name that it knows",
        ) from error


def parse_value(text: str, spec: FieldSpec) -> object:
    """Turn the text of an option into its value; `ConfigError` where it is not one."""
    if spec.kind is str:
        return None if spec.key in _EMPTY_IS_UNSET and not text.strip() else text
    stripped = text.strip()
    if spec.kind is bool and stripped.lower() in ("true", "false"):
        return stripped.lower() == "true"
    if spec.kind is int and _WHOLE_NUMBER.fullmatch(stripped):
        return int(stripped)
    if spec.kind is float and _NUMBER.fullmatch(stripped):
        return float(stripped)
    if issubclass(spec.kind, enum.Enum):
        with contextlib.suppress(ValueError):
            return spec.kind(stripped)
    raise ConfigError(
        f"{spec.key}={text}: expected {kind_name(spec.kind)}", key=spec.key, value=text
    )


def _note_unknown(key: str, text: str, others: Collection[str] = ()) -> str | None:
    """Return a warning, None where the key is known to change nothing, or raise."""
    if key in _IDLE_KEYS:
        return None
    if key in OLD_KEYS:
        return f"{key} is an option of RocketMQ 3 to 4.2, which 4.9 does not know, and is ignored"
    if key not in _LIKE_OURS and _nearest(key, others, _MISSPELT_RATIO):
        raise _unknown_key(key, text, others)
    return f"{key} is not an option of 4.9's store or broker and is ignored"


def _unknown_key(key: str, text: str, others: Collection[str]) -> ConfigError:
    meant = _nearest(key, others)
    return ConfigError(
        f"{key} is not an option",
        key=key,
        value=text,
        hint=f"did you mean {meant}?" if meant else "see: rocketstore config show",
    )


def _nearest(key: str, others: Collection[str], *ratio: float) -> str:
    """Return the option whose key resembles `key` most, empty where none does."""
    named = FIELDS.get(key)
    if named is not None:  # a snake-case name is the likeliest slip
        return named.key
    return nearest(key, (*FIELD_OF_KEY, *KEYS_WITHOUT_EFFECT, *others), *ratio)
