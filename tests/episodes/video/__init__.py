"""Tests of what decodes videos."""
