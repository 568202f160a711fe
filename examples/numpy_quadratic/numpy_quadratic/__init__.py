"""Quadratics with exact gradients: the counterexample of the FedPBC paper as a Flower app."""
