"""What a session lacks for a Python source, in Java beside this module (decision 0005).

PySpark 4.3 has no interface for the columns that a query uses, but its optimizer takes rules. And
Spark looks for the source of a write in the session of its thread of Java. Py4J begins one for each
thread of Python, and another after Ctrl-C, and Spark knows no session there.
"""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocketstore.events import get_logger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = get_logger(__name__)


def prune_columns(spark: SparkSession) -> None:
    """Let queries of a session ask this source for the columns that they use, and no others."""
    name, methods = "ColumnPruning", spark._jsparkSession.experimental()  # noqa: SLF001 - Python has no name for it
    rules = methods.extraOptimizations()
    if any(rules.apply(at).ruleName() == name for at in range(rules.size())):
        return
    if rule := _compiled(spark._jvm, name):  # noqa: SLF001 - as above
        getattr(methods, "extraOptimizations_$eq")(rules.appended(rule))


def give_threads_a_session(spark: SparkSession) -> None:
    """Let this thread have `spark`, and those that begin later Spark's default session."""
    jvm: Any = spark._jvm  # noqa: SLF001 - Python has no name for it, and for what follows
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)  # noqa: SLF001 - above
    _listen(spark.sparkContext._gateway)  # noqa: SLF001 - as above
    with ThreadPoolExecutor(1) as first:  # to begin tells the thread that begins the others
        first.submit(jvm.System.currentTimeMillis)


@functools.cache
def _listen(gateway: Any) -> None:
    """Be told of threads that Py4J begins, once in a JVM."""
    if listener := _compiled(gateway.jvm, "ThreadSessions"):
        gateway.java_gateway_server.addListener(listener)


def _compiled(jvm: Any, name: str) -> Any:
    """Return an object of a class in Java; None, with a warning, where it does not fit Spark."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - comes with PySpark

    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    try:
        compiler.setParentClassLoader(jvm.Thread.currentThread().getContextClassLoader())
        compiler.cook(Path(__file__).with_name(f"{name}.java").read_text())
        return compiler.getClassLoader().loadClass(name).newInstance()
    except Py4JError as error:
        _log.warning("spark.environment", what=f"no {name}: {error}")
        return None
