"""Multinomial logistic regression on the digits of scikit-learn, few labels per client, as a Flower app."""
