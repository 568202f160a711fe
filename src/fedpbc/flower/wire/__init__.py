"""How models, orders and answers travel."""
