"""The paper's tables and figures, as data and as runs."""
