"""Modules that the tests of mosaicml-streaming 0.5.0 import and its source distribution lacks."""
