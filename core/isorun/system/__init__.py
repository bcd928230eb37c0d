"""The machine and this process: cache, threads, cgroups, hardware, packages, child processes."""
