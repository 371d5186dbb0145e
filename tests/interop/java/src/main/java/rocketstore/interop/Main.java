package rocketstore.interop;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import com.alibaba.fastjson.parser.Feature;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

/**
 * Drives the genuine message store by lines: one JSON object in, one JSON object out.
 *
 * <p>Every command names itself in {@code cmd}. An answer has {@code ok}; a failed command has
 * {@code error} with the exception, and the process goes on. {@code halt} ends the process as a
 * crash does: no shutdown hook, no flush, the {@code abort} file stays.
 */
public final class Main {
    private static final int CRASH_EXIT_CODE = 137;

    private Main() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers =
            new PrintStream(new FileOutputStream(FileDescriptor.out), true, "UTF-8");
        // The store's own log lines must not mix with the answers.
        System.setOut(System.err);
        BufferedReader lines =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        StoreSession session = new StoreSession();
        String line;
        while ((line = lines.readLine()) != null) {
            JSONObject command = JSON.parseObject(line, Feature.OrderedField);
            String name = command.getString("cmd");
            if ("halt".equals(name)) {
                Runtime.getRuntime().halt(CRASH_EXIT_CODE);
            }
            answers.println(JSON.toJSONString(
                answer(session, name, command), SerializerFeature.WriteMapNullValue));
            if ("exit".equals(name)) {
                break;
            }
        }
        session.close();
        // Service threads of a store that failed to start are not daemons.
        System.exit(0);
    }

    private static JSONObject answer(StoreSession session, String name, JSONObject command) {
        try {
            JSONObject result =
                name.startsWith("bench") ? Bench.run(command) : session.run(name, command);
            result.put("ok", true);
            return result;
        } catch (Throwable failure) {
            failure.printStackTrace();
            JSONObject result = new JSONObject(true);
            result.put("ok", false);
            result.put("error", failure.toString());
            return result;
        }
    }
}
