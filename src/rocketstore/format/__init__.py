"""Bytes to values and back, one module per format; knows no file, socket, clock or thread."""
