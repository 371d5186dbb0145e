"""Jobs over whole stores, on Spark, each a function and a command: ``rocketstore pipeline <job>``.

A job plans on the driver, spreads tasks (`execution`), and publishes their output as a whole
(`publishing`); the leftovers of a killed job are removed by `sweeping`. See
``rocketstore.pipeline.audit(spark, "data/store")``.

Law: splits go out, small results come back, bodies never do.
"""
