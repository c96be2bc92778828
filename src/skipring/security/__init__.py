"""Credentials, the certificate authority and the deny list."""
