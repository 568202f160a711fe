"""What libraries print about a run on several processes, made readable: a script that a process of its own runs.

The runtime of JAX ends a process by itself when process 0 is gone, with a page of its own and no chance for ours.
"""

ENDED = "process {} of {}: another process has ended; what was finished is kept, go on with --resume"
MARK = b"JAX distributed service detected fatal errors, or we did\n"
"""Said by us, or by the runtime in the same words: whichever comes first."""

WATCH = r"""
import re, sys
NOISE = re.compile(rb"\[Gloo\]|coordination_service|preemption_sync|GRPC error|^:UNKNOWN:Error received")
ended = False
for line in sys.stdin.buffer:
    if not ended and b"JAX distributed service detected fatal errors" in line:
        ended = True
        sys.stderr.write("error: " + sys.argv[1] + "\n")
        sys.stderr.flush()
    if not ended and not NOISE.search(line):
        sys.stderr.buffer.write(line)
        sys.stderr.flush()
"""
