"""What several methods share."""
