"""Many runs at once: what to compare, and the machinery that runs it."""
