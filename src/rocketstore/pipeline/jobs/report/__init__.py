"""``rocketstore pipeline report``: what a store holds, as one HTML page and as Parquet tables.

`report_job` plans and runs it. Tasks count their records in groups (`partial_groups`), and Spark
adds the groups up. `report_tables` makes the tables of them by SQL, and `report_page` draws the
page from figures over these tables: ``report(spark, "data/store", "data/report").page``.

Law: nothing is written to the store, which may be in use. Damage never stops a report: intact
records are counted, and the page shows the damage. See docs/decisions/0012-report-page.md.
"""
