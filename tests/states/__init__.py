"""States of everything that has one: recorded, loaded again, and damaged."""
