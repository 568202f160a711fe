"""Which method is better, and how sure that is: tests over the seeds, and what it takes to reach a target."""
