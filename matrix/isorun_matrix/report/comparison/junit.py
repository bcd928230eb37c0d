"""A comparison of runs as JUnit's XML, which continuous integration shows: a test for each cell and run."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from isorun_matrix.report.comparison.compare import Comparison
from isorun_matrix.text import printable


def render(comparison: Comparison, worse: Sequence[tuple[str, int, str]]) -> str:
    """The comparison; what got worse (:func:`isorun_matrix.report.comparison.compare.regressions`) fails."""
    failures = {(name, number): how for name, number, how in worse}
    root = ElementTree.Element("testsuites")
    for number, run in enumerate(comparison.runs[1:], start=1):
        suite = ElementTree.SubElement(root, "testsuite", name=printable(run.folder), timestamp=run.created)
        tests = failed = 0
        for cell in comparison.cells:
            if (first := cell.results[0]) is None or first.status != "ok":
                continue
            tests += 1
            seconds = (cell.results[number] or first).wall_s or 0.0
            case = ElementTree.SubElement(
                suite, "testcase", classname=printable(f"{first.model}.{first.shape}"), name=printable(first.name)
            )
            case.set("time", f"{seconds:.3f}")
            if how := failures.get((cell.cell.id, number)):
                failed += 1
                ElementTree.SubElement(case, "failure", message=printable(how), type=cell.verdict(number))
        suite.set("tests", str(tests))
        suite.set("failures", str(failed))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"
