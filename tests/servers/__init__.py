"""Real servers for the tests, on free ports of this machine, for as long as the tests run."""
