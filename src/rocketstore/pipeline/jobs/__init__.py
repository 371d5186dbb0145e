"""Work over a whole store, spread over Spark: audit, rebuild, archive, restore, report.

Each job is a module of its own. They share how work is spread (`execution`), and one law: a job
sends splits to Python workers and gets small results back; message bodies never enter the JVM.
"""
