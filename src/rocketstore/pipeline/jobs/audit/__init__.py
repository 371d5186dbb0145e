"""Check log, queues, index and small files of a store against each other, on Spark.

`audit_plan` finds the files, `audit_work` compares ranges of them, `audit_judgement` judges each
queue and index file by what was found, `audit_job` is the call: ``audit(spark, "data/store")``.
"""
