"""What who writes a store and who judges it must agree on: topics, further queues, half messages.

Law: nothing here knows a file, a thread or Spark; values in, values out.
"""
