"""Wire format: bytes to frames to messages and back, without IO or clock (docs/wire.md)."""
