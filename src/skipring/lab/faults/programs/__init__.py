"""Programs that a harness starts as processes: applications that use ``skipring.connect``."""
