"""What a store does with its files after a stop, a crash or a fault."""
