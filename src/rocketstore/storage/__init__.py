"""Files and time: a store directory, its one writer and its readers."""
