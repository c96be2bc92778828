"""Bytes to frames to messages and back; no IO, no clock: docs/wire.md describes the format."""
