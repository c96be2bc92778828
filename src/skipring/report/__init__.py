"""Self-contained HTML reports: page, tables, plots."""
