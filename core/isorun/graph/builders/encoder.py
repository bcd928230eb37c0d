"""Construction of a fused encoder from its weights."""

from __future__ import annotations

import onnx_ir as ir

from isorun.graph.builders.bert import BertBuilder
from isorun.graph.builders.builder import Weights
from isorun.graph.builders.deberta import DebertaBuilder
from isorun.graph.builders.encoder_config import EncoderConfig
from isorun.graph.builders.jina import JinaBuilder
from isorun.graph.builders.t5 import T5Builder

_BUILDERS = {"deberta": DebertaBuilder, "jina": JinaBuilder, "t5": T5Builder}


def encoder(config: EncoderConfig, weights: Weights, name: str = "encoder") -> ir.Model:
    """Build the fused graph.

    Inputs, int64 (batch, sequence): ``input_ids``, ``attention_mask`` and, if the architecture has them,
    ``token_type_ids``. Outputs, float32: ``last_hidden_state`` (batch, sequence, hidden); with a pooler,
    ``pooler_output`` (batch, hidden); with a classifier, ``logits`` (batch, labels) or (batch, sequence, labels); with
    a question answering head, ``start_logits`` and ``end_logits`` (batch, sequence).

    Raises:
        InvalidModel: the settings of a family are invalid, or not supported.
    """
    return _BUILDERS.get(config.architecture.builder, BertBuilder)(config, weights).model(name)
