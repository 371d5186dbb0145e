import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Properties;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** Runs what Apache RocketMQ 4.9 has: a JSON object in, a JSON object out, a line each. */
public final class GenuineBroker {
    private BrokerController broker;

    public static void main(String[] arguments) throws Exception {
        // As BrokerStartup and NamesrvStartup do.
        System.setProperty(
            RemotingCommand.REMOTING_VERSION_KEY, Integer.toString(MQVersion.CURRENT_VERSION));
        Lines.serve(() -> new GenuineBroker()::handle);
    }

    private void handle(JSONObject ask, JSONObject answer) throws Exception {
        switch (ask.getString("cmd")) {
            case "nameServer": nameServer(ask.getString("path"), ask.getIntValue("port")); break;
            case "broker": start(ask); break;
            case "stop": broker.shutdown(); break;
            case "keys": answer.put("keys", keys()); break;
            case "mqadmin": answer.put("output", mqadmin(ask.getJSONArray("arguments"))); break;
            case "send": answer.put("results", send(ask)); break;
            default: throw new IllegalArgumentException(ask.getString("cmd"));
        }
    }

    /** Return the keys that a broker.conf may have: what MixAll.properties2Object finds setters of. */
    private static JSONArray keys() {
        JSONArray keys = new JSONArray();
        for (Class<?> settings : new Class<?>[] {
            BrokerConfig.class, NettyServerConfig.class, NettyClientConfig.class, MessageStoreConfig.class}) {
            for (java.lang.reflect.Method method : settings.getMethods()) {
                if (method.getName().startsWith("set")) {
                    keys.add(method.getName().substring(3, 4).toLowerCase() + method.getName().substring(4));
                }
            }
        }
        return keys;
    }

    private static void nameServer(String path, int port) throws Exception {
        NamesrvConfig config = new NamesrvConfig();
        config.setRocketmqHome(path);
        config.setKvConfigPath(path + "/kvConfig.json");
        config.setConfigStorePath(path + "/namesrv.properties");
        NettyServerConfig server = new NettyServerConfig();
        server.setListenPort(port);
        NamesrvController controller = new NamesrvController(config, server);
        controller.initialize();
        controller.start();
    }

    private void start(JSONObject ask) throws Exception {
        Properties properties = new Properties();
        ask.getJSONObject("config").forEach((name, value) -> properties.put(name, "" + value));
        BrokerConfig config = new BrokerConfig();
        MessageStoreConfig store = new MessageStoreConfig();
        MixAll.properties2Object(properties, config);
        MixAll.properties2Object(properties, store);
        config.setRocketmqHome(ask.getString("path"));
        config.setBrokerIP1("127.0.0.1");
        config.setBrokerIP2("127.0.0.1");
        store.setStorePathRootDir(ask.getString("path"));
        store.setStorePathCommitLog(ask.getString("path") + "/commitlog");
        store.setHaListenPort(0);
        NettyServerConfig server = new NettyServerConfig();
        server.setListenPort(ask.getIntValue("port"));
        broker = new BrokerController(config, server, new NettyClientConfig(), store);
        if (!broker.initialize()) {
            throw new IllegalStateException("the broker does not start");
        }
        broker.start();
    }

    /** Return what a command of mqadmin prints. */
    private static String mqadmin(JSONArray arguments) throws Exception {
        PrintStream before = System.out;
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        System.setOut(new PrintStream(printed, true, "UTF-8"));
        try {
            MQAdminStartup.main0(arguments.toArray(new String[0]), null);
        } finally {
            System.setOut(before);
        }
        return printed.toString("UTF-8");
    }

    private static JSONArray send(JSONObject ask) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("producers");
        producer.setNamesrvAddr(ask.getString("nameServer"));
        producer.setSendMsgTimeout(60_000);
        producer.start();
        JSONArray results = new JSONArray();
        for (Object body : ask.getJSONArray("bodies")) {
            byte[] bytes = ((String) body).getBytes(StandardCharsets.UTF_8);
            SendResult sent = producer.send(new Message(ask.getString("topic"), bytes), 60_000);
            results.add(sent.getSendStatus() + " " + sent.getMessageQueue().getBrokerName());
        }
        producer.shutdown();
        return results;
    }
}
