"""The experiment lab: thousands of simulations as Spark tasks, and what they say of the paper."""
