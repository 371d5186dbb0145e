// What Spark's optimizer lacks for a Python source: a scan has only the columns that its query uses.
// Compiled by Spark's own compiler when a session is registered (java_parts.py).
//
// Law: a scan that is narrowed is a new one with a plan of its own. What Spark planned for one set
// of columns is never used for another, which would be rows of the wrong columns; for the same set
// it is used again, as Spark itself does for the same DataFrame.

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.WeakHashMap;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import scala.jdk.javaapi.CollectionConverters;

public final class ColumnPruning extends Rule {
    private final Map sources = new WeakHashMap();  // by table, then by columns

    public synchronized TreeNode apply(TreeNode plan) {
        return pruned((LogicalPlan) plan);
    }

    private LogicalPlan pruned(LogicalPlan plan) {
        if (plan instanceof Project) {
            LogicalPlan child = ((Project) plan).child();
            LogicalPlan leaf = child instanceof Filter ? ((Filter) child).child() : child;
            AttributeSet used = plan.references();
            if (child != leaf) {
                used = used.$plus$plus(child.references());
            }
            LogicalPlan scan = narrowed(leaf, used);
            if (scan != leaf) {
                return with(plan, child == leaf ? scan : with(child, scan));
            }
        }
        List children = new ArrayList();
        boolean isSame = true;
        for (Object child : CollectionConverters.asJava(plan.children())) {
            LogicalPlan other = pruned((LogicalPlan) child);
            isSame &= other == child;
            children.add(other);
        }
        return isSame ? plan : with(plan, children);
    }

    private static LogicalPlan with(LogicalPlan plan, LogicalPlan child) {
        List children = new ArrayList();
        children.add(child);
        return with(plan, children);
    }

    private static LogicalPlan with(LogicalPlan plan, List children) {
        return (LogicalPlan) plan.withNewChildren(CollectionConverters.asScala(children).toSeq());
    }

    private LogicalPlan narrowed(LogicalPlan leaf, AttributeSet used) {
        if (!(leaf instanceof DataSourceV2ScanRelation)) {
            return leaf;
        }
        DataSourceV2ScanRelation scan = (DataSourceV2ScanRelation) leaf;
        Table table = scan.relation().table();
        if (!(table instanceof PythonTable) || !table.name().equalsIgnoreCase("rocketstore")) {
            return leaf;
        }
        List kept = new ArrayList();
        Attribute least = null;
        for (Object one : CollectionConverters.asJava(scan.output())) {
            Attribute column = (Attribute) one;
            if (used.contains(column)) {
                kept.add(column);
            }
            if (least == null || column.dataType().defaultSize() < least.dataType().defaultSize()) {
                least = column;
            }
        }
        if (kept.isEmpty()) {
            kept.add(least);  // rows are to be counted: a batch without columns has no length
        }
        if (kept.size() == scan.output().size()) {
            return leaf;
        }
        StructType all = scan.scan().readSchema();
        StructField[] fields = new StructField[kept.size()];
        for (int at = 0; at < fields.length; at++) {
            fields[at] = all.apply(((Attribute) kept.get(at)).name());
        }
        StructType schema = new StructType(fields);
        PythonScan narrow = new PythonScan(
            source(table, schema), table.name(), schema, scan.relation().options(),
            new org.apache.spark.sql.sources.Filter[0]);
        Object[] arguments = new Object[scan.productArity()];
        for (int at = 0; at < arguments.length; at++) {
            Object now = scan.productElement(at);
            arguments[at] = now == scan.scan() ? narrow
                : now == scan.output() ? CollectionConverters.asScala(kept).toSeq() : now;
        }
        return (LogicalPlan) scan.makeCopy(arguments);
    }

    private PythonDataSourceV2 source(Table table, StructType schema) {
        Map planned = (Map) sources.get(table);
        if (planned == null) {
            planned = new HashMap();
            sources.put(table, planned);
        }
        PythonDataSourceV2 source = (PythonDataSourceV2) planned.get(schema);
        if (source == null) {
            source = new PythonDataSourceV2();
            source.setShortName(table.name());
            planned.put(schema, source);
        }
        return source;
    }
}
