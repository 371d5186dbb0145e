"""Report what a store holds, as one page that needs nothing else, and as tables.

Tasks count in groups (``partial_groups``), Spark puts them together (``report_job``), tables are
statements over these groups (``report_tables``), and a template shows them (``report_page``).
Importing this package loads neither PySpark nor pyarrow.
"""
