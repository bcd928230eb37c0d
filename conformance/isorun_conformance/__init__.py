"""The checks that every backend has to pass (``isorun conformance``), and tools for tests of backends.

- ``suite.py``: all checks as a pytest suite, which a plugin adopts; ``checks/``: one file for each subject
- ``backend_under_test.py``: the backend, and how the checks open models on it
- ``process_state.py``: what a backend changes of its process
- ``inherited_state.py``: what child processes inherit, restored after each check
- ``sample_models.py``, ``formulas.py``: the models, from a single node to bert-base
- ``runner.py``, ``result.py``: runs the suite in a child process, and what that returns
- ``recorder.py``, ``pytest_target.py``: the pytest plugin and the test file of that child process
- ``known_failures.py``: the checks that are declared to fail
- ``certificate.py``: the result as a document that is kept, and compared with a later one
- ``cli.py``: the command
- ``fakes.py``: backends that misbehave, for tests of code that uses backends
"""
