"""What is measured on this machine: precisions, backends, and plans for concurrent requests, once for each model.

:mod:`.timing` times candidates in alternating turns, :mod:`.accuracy` compares their outputs with fp32's, and
:mod:`.record` names the cache entries. :mod:`.precision`, :mod:`.backend` and :mod:`.concurrency` say what the
candidates are.
"""
