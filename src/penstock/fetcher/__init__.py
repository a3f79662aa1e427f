"""The process of each node that fetches: one for all jobs of a user, started by the first that needs it."""
