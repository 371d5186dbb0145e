"""Jobs over whole stores, on Spark: splits go out, small results come back, bodies never do.

A job plans on the driver, spreads tasks (`execution`), and publishes their output as a whole
(`publishing`); the leftovers of a killed job are removed by `sweeping`. Each job has a function in
``rocketstore.pipeline`` and a command, ``rocketstore pipeline <job>``.
"""
