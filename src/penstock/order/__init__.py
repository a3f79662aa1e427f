"""What comes next: pure arithmetic over sample ids, no IO at all."""
