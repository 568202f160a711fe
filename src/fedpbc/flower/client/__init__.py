"""The client: the mod around the app's train function, and what a method keeps there."""
