"""Work over whole stores, on Spark: splits go out, small results come back, bodies never do.

A job plans on the driver, has `execution` spread tasks, and publishes what they made as a whole
(`publishing`); what a killed one left is cleared by `sweeping`. Each job has a function in
``rocketstore.pipeline`` and a command, ``rocketstore pipeline <job>``.
"""
