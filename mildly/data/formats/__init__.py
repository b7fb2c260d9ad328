"""Readers: each turns one kind of file into a Dataset."""
