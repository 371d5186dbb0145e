"""Proof that the tests notice: see `mutation.tool`."""
