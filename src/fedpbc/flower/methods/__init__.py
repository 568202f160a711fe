"""The methods on real machines, one file each, as in fedpbc.algorithms, whose functions they call."""
