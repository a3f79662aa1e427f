"""Streams of files that other programs wrote: what is asked for, and how those of this machine are read."""
