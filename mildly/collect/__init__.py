"""Policies acting in environments: making data sets, and the online agent that makes their behavior policies."""
