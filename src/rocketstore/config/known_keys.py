"""Keys that a ``broker.conf`` may hold and that change nothing here, by where they belong.

They are known, so that a misspelt store option is not taken for one of them and their presence is
no mistake; their values are not looked at.
Source: rocketmq-all-4.9.8, BrokerConfig, NettyServerConfig, NettyClientConfig, MixAll,
MessageStoreConfig.
"""

from __future__ import annotations

from typing import Final

_BROKER: Final = """
    rocketmqHome namesrvAddr brokerIP1 brokerIP2 brokerName brokerClusterName brokerId
    brokerPermission defaultTopicQueueNums autoCreateTopicEnable clusterTopicEnable
    brokerTopicEnable autoCreateSubscriptionGroup messageStorePlugIn msgTraceTopicName
    traceTopicEnable sendMessageThreadPoolNums putMessageFutureThreadPoolNums
    pullMessageThreadPoolNums processReplyMessageThreadPoolNums queryMessageThreadPoolNums
    adminBrokerThreadPoolNums clientManageThreadPoolNums consumerManageThreadPoolNums
    heartbeatThreadPoolNums endTransactionThreadPoolNums flushConsumerOffsetInterval
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
    startAcceptSendRequestTimeStamp traceOn enableCalcFilterBitMap expectConsumerNumUseFilter
    maxErrorRateOfBloomFilter filterDataCleanTimeSpan filterSupportRetry enablePropertyFilter
    compressedRegister forceRegister registerNameServerPeriod transactionTimeOut
    transactionCheckMax transactionCheckInterval aclEnable storeReplyMessageEnable
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
    enableConsumeQueueExt mappedFileSizeConsumeQueueExt bitMapLengthConsumeQueueExt
    transientStorePoolEnable transientStorePoolSize fastFailIfNoBufferInStorePool
    commitIntervalCommitLog commitCommitLogLeastPages commitCommitLogThoroughInterval
    useReentrantLockWhenPutMessage putMsgIndexHightWater debugLockEnable diskFallRecorded
    defaultQueryMaxNum flushDelayOffsetInterval enableScheduleMessageStats
    enableScheduleAsyncDeliver scheduleAsyncDeliverMaxPendingLimit
    scheduleAsyncDeliverMaxResendNum2Blocked maxLmqConsumeQueueNum slaveTimeout haListenPort
    haSendHeartbeatInterval haHousekeepingInterval haTransferBatchSize haMasterAddress
    haSlaveFallbehindMax offsetCheckInSlave duplicationEnable
"""

_OF_5: Final = """
    accessMessageInMemoryHotRatio enabledAppendPropCRC forceVerifyPropCRC
    mapperFileSizeBatchConsumeQueue maxFilterMessageSize maxRecoveryCommitlogFiles readUnCommitted
    searchBcqByCacheEnable travelCqFileNumWhenGetMessage
"""

BROKER_KEYS: Final = frozenset(_BROKER.split())
"""Options of other parts of a broker than its store: the broker itself, its network, DLedger."""

KEYS_WITHOUT_EFFECT: Final = frozenset(_WITHOUT_EFFECT.split())
"""Options of 4.9's store: of parts that are still to come (replication, delivery of delayed
messages, the transient pool, extension files), or of things that are done in another way here."""

KEYS_OF_5: Final = frozenset(_OF_5.split())
"""Options of the 5.x store; accepted with a warning, because 4.9 ignores them too."""

BROKER_ADDRESS_KEY: Final = "brokerIP1"
LISTEN_PORT_KEY: Final = "listenPort"
"""Two of the broker's give the store's host (BrokerController.getStoreHost)."""
DEFAULT_LISTEN_PORT: Final = "10911"
