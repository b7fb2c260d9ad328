"""One trainer for all algorithms, the run folder it writes, and checkpoints that make any run resumable."""
