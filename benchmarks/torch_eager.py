"""PyTorch eager on the traffic of ``traffic.py``: plain modules with random weights of the preset's sizes.

``traffic.py`` runs this with a Python that has PyTorch and NumPy and needs nothing else.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
import traffic
from torch import Tensor, nn
from torch.nn import functional

LAYERS = {"bert-3l": 3, "bert-6l": 6, "bert-base": 12}
WIDTH, HEADS, INNER = 768, 12, 3072


class Layer(nn.Module):
    """One layer of BERT, its attention by ``scaled_dot_product_attention``."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.wide, self.narrow = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, hidden: Tensor, attend: Tensor) -> Tensor:
        rows, length, _ = hidden.shape
        query, key, value = (
            part(hidden).view(rows, length, HEADS, -1).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        context = functional.scaled_dot_product_attention(query, key, value, attend)
        hidden = self.first(hidden + self.output(context.transpose(1, 2).reshape(rows, length, WIDTH)))
        return self.second(hidden + self.narrow(functional.gelu(self.wide(hidden))))


class Bert(nn.Module):
    """Embeddings, layers and a pooler."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.words, self.places, self.kinds = (nn.Embedding(rows, WIDTH) for rows in (30522, 512, 2))
        self.norm, self.pooler = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, Tensor]:
        places = self.places(torch.arange(input_ids.shape[1]))
        hidden = self.norm(self.words(input_ids) + self.kinds(token_type_ids) + places)
        attend = attention_mask.bool()[:, None, None, :]
        for layer in self.layers:
            hidden = layer(hidden, attend)
        return hidden, torch.tanh(self.pooler(hidden[:, 0]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--preset", choices=LAYERS, required=True)
    parser.add_argument("--batches", type=int, required=True)
    parser.add_argument("--even", action="store_true")
    parser.add_argument("--pad-to", type=int, default=0)
    arguments = parser.parse_args()
    batches = traffic.stream(arguments.batches, even=arguments.even, pad_to=arguments.pad_to)
    torch.manual_seed(0)
    model = Bert(LAYERS[arguments.preset]).eval()
    with torch.inference_mode():

        def run(feeds: traffic.Feeds) -> None:
            model(**{name: torch.from_numpy(array) for name, array in feeds.items()})

        for feeds in traffic.warm_up(arguments.batches, even=arguments.even, pad_to=arguments.pad_to):
            run(feeds)
        wall, cpu = time.perf_counter(), time.process_time()
        for feeds in batches:
            run(feeds)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    count = traffic.tokens(batches)
    print(json.dumps({"tokens_per_second": count / wall, "tokens_per_cpu_second": count / cpu}))


if __name__ == "__main__":
    main()
