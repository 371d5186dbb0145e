"""Files of a fixed size, mapped or read, and the calls that make them durable."""
