"""Keys that a ``broker.conf`` of 4.9 holds for other parts of the broker than its store.

They are known, so that a misspelt store option is not taken for one of them and their presence is
no mistake; their values are not looked at.
Source: rocketmq-all-4.9.8, BrokerConfig, NettyServerConfig, NettyClientConfig, MixAll.
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
"""

_NETWORK: Final = """
    listenPort serverWorkerThreads serverCallbackExecutorThreads serverSelectorThreads
    serverOnewaySemaphoreValue serverAsyncSemaphoreValue serverChannelMaxIdleTimeSeconds
    serverSocketSndBufSize serverSocketRcvBufSize writeBufferHighWaterMark writeBufferLowWaterMark
    serverSocketBacklog serverPooledByteBufAllocatorEnable useEpollNativeSelector
    clientWorkerThreads clientCallbackExecutorThreads clientOnewaySemaphoreValue
    clientAsyncSemaphoreValue connectTimeoutMillis channelNotActiveInterval
    clientChannelMaxIdleTimeSeconds clientSocketSndBufSize clientSocketRcvBufSize
    clientPooledByteBufAllocatorEnable clientCloseSocketIfTimeout useTLS
    rmqAddressServerDomain rmqAddressServerSubGroup
"""

_UNUSED_STORE: Final = """
    dLegerGroup dLegerPeers dLegerSelfId preferredLeaderId enableBatchPush isEnableBatchPush
    storePathDLedgerCommitLog
"""

FOREIGN_KEYS: Final = frozenset((_BROKER + _NETWORK + _UNUSED_STORE).split())

BROKER_ADDRESS_KEY: Final = "brokerIP1"
LISTEN_PORT_KEY: Final = "listenPort"
"""Two of them give the store's host (BrokerController.getStoreHost)."""
DEFAULT_LISTEN_PORT: Final = "10911"

LATER_KEYS: Final = frozenset(
    {
        "accessMessageInMemoryHotRatio",
        "enabledAppendPropCRC",
        "forceVerifyPropCRC",
        "mapperFileSizeBatchConsumeQueue",
        "maxFilterMessageSize",
        "maxRecoveryCommitlogFiles",
        "readUnCommitted",
        "searchBcqByCacheEnable",
        "travelCqFileNumWhenGetMessage",
    }
)
"""Options of the 5.x store; accepted with a warning, because 4.9 ignores them too."""
