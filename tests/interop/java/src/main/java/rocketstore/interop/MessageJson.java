package rocketstore.interop;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.net.UnknownHostException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.store.MessageExtBrokerInner;

/** Messages to and from JSON; field names are those of {@code rocketstore message get}. */
final class MessageJson {
    private MessageJson() {
    }

    /** A message as the send processor hands it to the store. */
    static MessageExtBrokerInner inner(JSONObject json) throws UnknownHostException {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        fillEnvelope(message, json);
        String properties = MessageDecoder.messageProperties2String(properties(json));
        // Their order is another one once the store adds some.
        MessageAccessor.setProperties(message, MessageDecoder.string2messageProperties(properties));
        message.setPropertiesString(properties);
        message.setBody(body(json));
        message.setFlag(json.getIntValue("flag"));
        return message;
    }

    /** A batch as a client encodes it: the envelope's fields hold for all of its messages. */
    static MessageExtBatch batch(JSONObject envelope, JSONArray messages)
        throws UnknownHostException {
        List<Message> singles = new ArrayList<>();
        for (int i = 0; i < messages.size(); i++) {
            JSONObject json = messages.getJSONObject(i);
            Message single = new Message();
            single.setTopic(envelope.getString("topic"));
            single.setBody(body(json));
            single.setFlag(json.getIntValue("flag"));
            MessageAccessor.setProperties(single, properties(json));
            singles.add(single);
        }
        MessageExtBatch batch = new MessageExtBatch();
        fillEnvelope(batch, envelope);
        MessageAccessor.setProperties(batch, properties(envelope));
        batch.setBody(MessageDecoder.encodeMessages(singles));
        return batch;
    }

    /** What the store's own decoder makes of a record. */
    static JSONObject decoded(ByteBuffer record) {
        MessageExt message = MessageDecoder.decode(record, true, false);
        JSONObject json = new JSONObject(true);
        json.put("topic", message.getTopic());
        json.put("queueId", message.getQueueId());
        json.put("queueOffset", message.getQueueOffset());
        json.put("physicalOffset", message.getCommitLogOffset());
        json.put("size", message.getStoreSize());
        json.put("sysFlag", message.getSysFlag());
        json.put("flag", message.getFlag());
        json.put("bornTimestamp", message.getBornTimestamp());
        json.put("bornHost", host(message.getBornHost()));
        json.put("storeTimestamp", message.getStoreTimestamp());
        json.put("storeHost", host(message.getStoreHost()));
        json.put("reconsumeTimes", message.getReconsumeTimes());
        json.put("preparedTransactionOffset", message.getPreparedTransactionOffset());
        json.put("bodyCRC", message.getBodyCRC());
        byte[] body = message.getBody() == null ? new byte[0] : message.getBody();
        json.put("bodySize", body.length);
        json.put("body", Base64.getEncoder().encodeToString(body));
        json.put("properties", message.getProperties());
        json.put("msgId", message.getMsgId());
        return json;
    }

    private static void fillEnvelope(MessageExt message, JSONObject json)
        throws UnknownHostException {
        message.setTopic(json.getString("topic"));
        message.setQueueId(json.getIntValue("queueId"));
        message.setSysFlag(json.getIntValue("sysFlag"));
        message.setBornTimestamp(json.getLongValue("bornTimestamp"));
        message.setBornHost(address(json.getString("bornHost")));
        message.setStoreHost(address(json.getString("storeHost")));
        message.setReconsumeTimes(json.getIntValue("reconsumeTimes"));
        message.setPreparedTransactionOffset(json.getLongValue("preparedTransactionOffset"));
    }

    private static byte[] body(JSONObject json) {
        String encoded = json.getString("body");
        return encoded == null ? new byte[0] : Base64.getDecoder().decode(encoded);
    }

    /** Properties come as a list of pairs: their order is part of the bytes. */
    private static Map<String, String> properties(JSONObject json) {
        Map<String, String> properties = new LinkedHashMap<>();
        JSONArray pairs = json.getJSONArray("properties");
        if (pairs != null) {
            for (int i = 0; i < pairs.size(); i++) {
                JSONArray pair = pairs.getJSONArray(i);
                properties.put(pair.getString(0), pair.getString(1));
            }
        }
        return properties;
    }

    static SocketAddress address(String hostAndPort) throws UnknownHostException {
        String text = hostAndPort == null ? "127.0.0.1:0" : hostAndPort;
        int colon = text.lastIndexOf(':');
        // getByName takes IPv6 literals with their brackets, and looks up no literal.
        return new InetSocketAddress(
            InetAddress.getByName(text.substring(0, colon)),
            Integer.parseInt(text.substring(colon + 1)));
    }

    private static String host(SocketAddress address) {
        InetSocketAddress inet = (InetSocketAddress) address;
        String literal = inet.getAddress().getHostAddress();
        return (literal.indexOf(':') < 0 ? literal : "[" + literal + "]") + ":" + inet.getPort();
    }
}
