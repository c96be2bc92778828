"""``python -m skipring``."""

from skipring.cli import main

main()
