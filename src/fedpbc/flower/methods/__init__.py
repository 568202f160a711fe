"""The methods on real machines, one file each, as in fedpbc.algorithms: the same formulas, in one pass."""
