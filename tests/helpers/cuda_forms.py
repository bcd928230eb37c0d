"""Models lowered for ort-cuda, and sessions on the CPU provider for the forms that need no GPU."""

import numpy as np
import onnxruntime

import tiny
from isorun.models import lowering
from isorun.models import source as models
from isorun.system.cache import Cache

BATCH, SEQUENCE = 4, 16
CPU = ["CPUExecutionProvider"]


def lower(path, dialect="fused", precision="fp32", packed=False, outputs=None):
    """A model file lowered for the backend."""
    cache = Cache()
    source = models.open_model(path, cache, outputs)
    return lowering.ModelGraphs(source, cache).lower((dialect,), packed=packed, precision=precision)


def cpu_session(content, lowered):
    """A session of a form, with the weights of the lowered model."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(lowered.path.parent))
    return onnxruntime.InferenceSession(content, options, providers=CPU)


def whole_session(lowered):
    """A session of the lowered model itself."""
    return onnxruntime.InferenceSession(str(lowered.path), providers=CPU)


def feeds_with(mask, seed=3):
    rng = np.random.default_rng(seed)
    return {
        "input_ids": rng.integers(0, tiny.VOCABULARY, mask.shape),
        "attention_mask": mask,
        "token_type_ids": rng.integers(0, 2, mask.shape),
    }


def with_computed_mask(lowered, path):
    """The model with a mask that a node computes from its input."""
    import onnx

    model = onnx.load(lowered.path)
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            if name == "attention_mask":
                node.input[index] = "twice"
    model.graph.node.insert(0, onnx.helper.make_node("Mul", ["attention_mask", "attention_mask"], ["twice"], "twice"))
    onnx.save(model, path)
    return path
