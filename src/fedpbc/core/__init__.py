"""What everything rests on: the contract, the arithmetic, options and their checks, the only loop."""
