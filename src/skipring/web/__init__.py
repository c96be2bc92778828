"""Dashboard: a monitored cluster in the browser."""
