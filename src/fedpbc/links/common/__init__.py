"""What link processes share."""
