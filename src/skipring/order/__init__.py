"""Order of publications at a reader: machines without IO and clock (docs/ordering.md)."""
