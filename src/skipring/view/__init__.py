"""Views of a live cluster for the command line and the dashboard."""
