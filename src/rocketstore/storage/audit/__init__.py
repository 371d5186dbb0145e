"""Look at a whole store without changing it: log, queues and index against each other."""
