"""Let Spark ask this source for the columns that a query uses, and no others.

PySpark 4.3 has no interface for that, but its optimizer takes rules (decision 0005). Where one
cannot be given, on Spark Connect, a query reads the columns that its options name.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rocketstore.events import get_logger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = get_logger(__name__)

RULE: Final = "ColumnPruning"
_SOURCE: Final = Path(__file__).with_name(f"{RULE}.java")


def prune_columns(spark: SparkSession) -> None:
    """Add the rule to a session on this machine's JVM, once; of another Spark it may not fit."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - comes with PySpark

    jvm: Any = spark._jvm  # noqa: SLF001 - Python has no name for it, and for what follows
    methods = spark._jsparkSession.experimental()  # noqa: SLF001 - as above
    rules = methods.extraOptimizations()
    if any(rules.apply(at).ruleName() == RULE for at in range(rules.size())):
        return
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    try:
        compiler.setParentClassLoader(jvm.Thread.currentThread().getContextClassLoader())
        compiler.cook(_SOURCE.read_text())
        rule = compiler.getClassLoader().loadClass(RULE).newInstance()
    except Py4JError as error:
        _log.warning("spark.environment", what=f"no rule for columns: {error}")
        return
    getattr(methods, "extraOptimizations_$eq")(rules.appended(rule))
