import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.function.Supplier;

/** What the drivers of genuine software have in common: one JSON object in, one JSON object out. */
final class Lines {
    /** Does what a command says, and puts into its answer what there is to tell. */
    interface Driver {
        void run(JSONObject command, JSONObject answer) throws Exception;
    }

    private Lines() {
    }

    /**
     * Serves until the command {@code exit}, or until nobody asks; then the process ends.
     *
     * <p>The driver is made last: what it makes may keep the output that it finds.
     */
    static void serve(Supplier<Driver> made) throws Exception {
        PrintStream answers =
            new PrintStream(new FileOutputStream(FileDescriptor.out), true, "UTF-8");
        System.setOut(System.err); // the software's own lines must not mix with the answers
        BufferedReader lines =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Driver driver = made.get();
        boolean goesOn = true;
        for (String line; goesOn && (line = lines.readLine()) != null; ) {
            JSONObject command = JSON.parseObject(line);
            JSONObject answer = new JSONObject();
            try {
                driver.run(command, answer);
                answer.put("ok", true);
            } catch (Throwable failure) {
                failure.printStackTrace();
                answer.put("ok", false);
                answer.put("error", failure.toString());
            }
            answers.println(answer.toJSONString());
            goesOn = !"exit".equals(command.getString("cmd"));
        }
        System.exit(0); // threads of what was started may not be daemons
    }
}
