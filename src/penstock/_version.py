"""The version of penstock, in one place for the package and its build."""

__version__ = "0.1.0.dev0"
