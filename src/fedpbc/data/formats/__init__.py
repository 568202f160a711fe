"""Loaders of files and folders as others write them, a format each: a function that reads, and the component."""
