"""How good is a policy: episodes in a real environment, and scores."""
