"""Reports of a run, all made from the same document (:meth:`isorun_matrix.results.RunFolder.document`)."""
