"""Decoded frames that are kept for later samples: within how many bytes, and for how long."""
