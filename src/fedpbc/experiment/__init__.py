"""An experiment as a file: its keys, overrides and grid."""
