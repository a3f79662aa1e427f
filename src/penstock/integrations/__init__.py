"""Names for those who train with a framework: a module for each that needs more than a loader."""
