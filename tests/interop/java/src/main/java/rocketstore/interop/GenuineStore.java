package rocketstore.interop;

import java.io.IOException;
import java.util.Map;
import java.util.Properties;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.BrokerRole;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** Makes the genuine store the way a broker does, without the broker. */
final class GenuineStore {
    private GenuineStore() {
    }

    /** The store's configuration: defaults, then what the caller gives by broker.conf keys. */
    static MessageStoreConfig config(String path, Map<String, Object> settings) {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(path);
        // Several stores run side by side in the tests: any free port will do.
        config.setHaListenPort(0);
        Properties properties = new Properties();
        if (settings != null) {
            for (Map.Entry<String, Object> setting : settings.entrySet()) {
                properties.setProperty(setting.getKey(), String.valueOf(setting.getValue()));
            }
        }
        MixAll.properties2Object(properties, config);
        return config;
    }

    static DefaultMessageStore make(MessageStoreConfig config) throws IOException {
        BrokerConfig broker = new BrokerConfig();
        if (config.getBrokerRole() == BrokerRole.SLAVE) {
            // Dispatch of a master steps over a record that has not arrived whole.
            broker.setBrokerId(1);
        }
        DefaultMessageStore store = new DefaultMessageStore(
            config,
            new BrokerStatsManager("rocketstore-interop", false),
            (topic, queueId, logicOffset, tagsCode, storeTime, bitMap, properties) -> { },
            broker);
        if (config.getHaMasterAddress() != null) {
            // As BrokerController does; the store alone does not read it.
            store.updateHaMasterAddress(config.getHaMasterAddress());
        }
        return store;
    }

    /** Open for reading and writing, as a broker at its start. */
    static DefaultMessageStore start(MessageStoreConfig config) throws Exception {
        DefaultMessageStore store = make(config);
        if (!store.load()) {
            throw new IllegalStateException("load() refused " + config.getStorePathRootDir());
        }
        store.start();
        return store;
    }

    /** Wait until every stored message has its queue entry and its index items. */
    static void waitDispatched(DefaultMessageStore store) throws InterruptedException {
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(1);
        }
    }
}
