"""The report: what a store holds, as one HTML page and as Parquet tables.

``rocketstore pipeline report`` on the command line, one call in Python::

    import rocketstore.pipeline

    spark = rocketstore.pipeline.session()
    found = rocketstore.pipeline.report(spark, "data/store", "data/report")
    print(found.page, found.summary["messages"], found.summary["latency"]["p99"])

`report_job` plans and runs it. Tasks count their records in groups (`partial_groups`), and Spark
adds the groups up. `report_tables` makes the tables of them by SQL, and `report_page` draws the
page from figures over these tables.

Law: nothing is written to the store, which may be in use. Damage never stops a report: intact
records are counted, and the page shows the damage. The report appears under its name as a whole.
Page: docs/guide/spark-report.md, decision docs/decisions/0012-report-page.md.
"""
