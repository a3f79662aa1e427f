"""Several robot datasets in one: shares, names of features, and what stands for cameras that a robot does not have."""
