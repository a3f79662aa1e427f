"""Compression and digests of whole files."""
