"""The dashboard: a watched ring in the browser."""
