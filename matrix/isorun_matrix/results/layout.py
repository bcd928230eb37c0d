"""Names of the files in the folder of a run (docs/matrix-results.md shows the whole tree). Imports nothing, so that
processes that measure can use it."""

RUN = "run.json"
MACHINES = "machines"  # has a run in a folder for each of several machines
JOB = "job.json"
OUTCOME = "outcome.json"  # what a process hands back; the parent turns it into a result
RESULT = "result.json"
LOG = "log.txt"
FEEDS = "feeds.npz"
REFERENCE_OUTPUTS = "outputs.npz"
SAMPLES = "samples.npz"
SEARCH = "search.npz"  # texts as feeds, and their vectors in fp32
