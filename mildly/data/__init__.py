"""Logged transitions: one schema, readers for what people have, minibatches for training."""
