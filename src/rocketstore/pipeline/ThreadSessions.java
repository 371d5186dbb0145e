// What a thread of Java lacks that Py4J begins for one of Python: a session (java_parts.py).

import org.apache.spark.sql.classic.SparkSession;
import py4j.DefaultGatewayServerListener;
import py4j.Py4JServerConnection;

public final class ThreadSessions extends DefaultGatewayServerListener {
    // Called in the thread that begins all others, which inherit its session.
    public void connectionStarted(Py4JServerConnection connection) {
        scala.Option session = SparkSession.getDefaultSession();
        if (session.isDefined()) {
            SparkSession.setActiveSession((SparkSession) session.get());
        }
    }
}
