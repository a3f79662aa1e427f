"""Writing LeRobot datasets: frames in, a v3.0 folder or bucket out."""
