"""Work over whole stores, on Spark: splits go out, small results come back, bodies never do."""
