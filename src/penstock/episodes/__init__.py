"""Robot episodes: LeRobot datasets, read where they lie, frame by frame, with windows in time and video."""
