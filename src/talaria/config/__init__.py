"""Settings assembled from each package's own: load, validate, explain."""
