# The public names of ``rocketstore``: read when one is first asked for, see `__init__.py`.

from rocketstore.config import (
    BrokerRole as BrokerRole,
    FlushDiskType as FlushDiskType,
    RecoveryPolicy as RecoveryPolicy,
    StoreConfig as StoreConfig,
    load_config as load_config,
)
from rocketstore.config.sources import LoadedConfig as LoadedConfig
from rocketstore.consuming.consumer import ConsumedMessage as ConsumedMessage, Consumer as Consumer
from rocketstore.errors import (
    ArchiveDamagedError as ArchiveDamagedError,
    ArchiveError as ArchiveError,
    ArgumentError as ArgumentError,
    BodyTooLargeError as BodyTooLargeError,
    CompressedBodyError as CompressedBodyError,
    ConfigError as ConfigError,
    FieldRangeError as FieldRangeError,
    FlushFailedError as FlushFailedError,
    FormatError as FormatError,
    InvalidFilterError as InvalidFilterError,
    InvalidNameError as InvalidNameError,
    NotAStoreError as NotAStoreError,
    NotFoundError as NotFoundError,
    NotReadableError as NotReadableError,
    PutFailedError as PutFailedError,
    RefusedMessageError as RefusedMessageError,
    RemotingError as RemotingError,
    ResponseError as ResponseError,
    RocketStoreError as RocketStoreError,
    SparkJobError as SparkJobError,
    StoreClosedError as StoreClosedError,
    StoreDamagedError as StoreDamagedError,
    StoreError as StoreError,
    StoreForkedError as StoreForkedError,
    StoreFullError as StoreFullError,
    StoreLockedError as StoreLockedError,
    StoreReadOnlyError as StoreReadOnlyError,
    SystemRefusedError as SystemRefusedError,
    TruncatedRecordError as TruncatedRecordError,
    UnsupportedEnvironmentError as UnsupportedEnvironmentError,
)
from rocketstore.format.checkpoint import Checkpoint as Checkpoint
from rocketstore.format.index_file import IndexHeader as IndexHeader
from rocketstore.format.queue_entry import QueueEntry as QueueEntry
from rocketstore.format.queue_extension import ExtensionUnit as ExtensionUnit
from rocketstore.format.stored_message import StoredMessage as StoredMessage
from rocketstore.message import Message as Message
from rocketstore.message_store import MessageStore as MessageStore
from rocketstore.storage.queues.consumer_filters import ConsumerFilters as ConsumerFilters
from rocketstore.storage.attached import Service as Service
from rocketstore.audit.repair import repair_store as repair_store
from rocketstore.audit.repair_plan import RepairReport as RepairReport
from rocketstore.storage.dispatch.dispatch_service import DispatchHealth as DispatchHealth
from rocketstore.storage.dispatch.dispatcher import Arrival as Arrival
from rocketstore.storage.files.pread_files import LogFile as LogFile
from rocketstore.storage.log.prepared import PreparedMessage as PreparedMessage
from rocketstore.storage.read_only import ReadOnlyStore as ReadOnlyStore
from rocketstore.storage.recovery.recover import RecoveryReport as RecoveryReport
from rocketstore.storage.results import (
    GetMessageStatus as GetMessageStatus,
    GetRawResult as GetRawResult,
    GetResult as GetResult,
    GetViewsResult as GetViewsResult,
    PutMessageStatus as PutMessageStatus,
    PutResult as PutResult,
)
from rocketstore.storage.running_flags import (
    RunningFlag as RunningFlag,
    RunningFlags as RunningFlags,
)
from rocketstore.storage.statistics import StoreStatistics as StoreStatistics
from rocketstore.storage.topics_of_kind import TopicsOfKind as TopicsOfKind
from rocketstore.transaction.checks import CheckAnswer as CheckAnswer
from rocketstore.transaction.records import EndStatus as EndStatus
from rocketstore.transaction.transactions import EndResult as EndResult, HalfMessage as HalfMessage
from rocketstore.units import ByteRange as ByteRange, QueueKey as QueueKey
from rocketstore.audit.verify import verify_store as verify_store
from rocketstore.rules.files import FileFinding as FileFinding
from rocketstore.rules.findings import (
    Finding as Finding,
    Severity as Severity,
    VerifyReport as VerifyReport,
)

__version__: str
