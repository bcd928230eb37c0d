"""A spec to start with, for the machine that it is written on."""

from __future__ import annotations

from isorun.plugin import listing
from isorun.system.hardware import cpu_name
from isorun.system.threads import usable_cores

_TEXT = """\
# A matrix for {cpu}, {cores} usable cores. docs/matrix-keys.md lists every key.
#
#   isorun matrix validate {file}    checks it, and counts its cells
#   isorun matrix run {file}         runs it

models:
  bert-3l: {{preset: bert-3l}}              # random weights; or `path: model.onnx`, or
  # minilm:                               # a checkpoint, with texts of your own
  #   checkpoint: all-MiniLM-L6-v2
  #   texts: texts.txt

shapes:
  - 1x128                                 # batch x sequence
  # - {{batch: [1, 8], sequence: [64, 128], lengths: {{distribution: lognormal, median: 40}}}}

backends:
{backends}
# threads: [1, {cores}]                        # default: all usable cores
# exclude:
#   - {{backend: {first}, precision: int8}}

masks: [right, left, holes]               # parity is checked on these kinds of padding, too
# reference: {{backend: ort-cpu, precision: fp32}}    # faster than ONNX's evaluator, for large models
rounds: 5                                 # processes that measure each cell
seconds: 1                                # in each round
"""


def text(file: str) -> str:
    """The spec in a file of that name: every backend that is available, at its precisions."""
    lines, names = [], []
    for description in listing.descriptions():
        name = description.name
        if description.status != "available":
            lines.append(f"  # - {name}: {' '.join(description.reason.split())}")
        elif name == "reference":
            lines.append("  # - reference                           # slow: ONNX's own evaluator")
        else:
            names.append(name)
            offered = description.capabilities.precisions
            chosen = [precision for precision in ("fp32", "bf16", "fp16", "int8") if precision in offered]
            lines.append(f"  - {{name: {name}, precisions: [{', '.join(chosen)}]}}")
    lines.sort(key=lambda line: line.lstrip().startswith("#"))
    first = names[0] if names else "ort-cpu"
    return _TEXT.format(file=file, cpu=cpu_name(), cores=usable_cores(), backends="\n".join(lines), first=first)
