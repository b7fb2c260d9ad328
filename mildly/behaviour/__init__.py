"""Models of the policy that made the data, mu_hat(.|s)."""
