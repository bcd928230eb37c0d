"""Runs the blocks of docs/serve.md with the real clients, and prints what they got as JSON.

    python clients.py docs/serve.md HOST:PORT

Run by ``test_clients.py``, with a Python that has the clients and not isorun. A block whose client is not installed is
left out.
"""

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def plain(value: Any) -> Any:
    """A client's result as lists."""
    if hasattr(value, "data"):  # OpenAI
        value = value.data if not hasattr(value, "tolist") else value.tolist()
    if hasattr(value, "results"):  # Cohere
        return [[result.index, result.relevance_score] for result in value.results]
    if hasattr(value[0], "payload"):  # Qdrant
        return [[point.payload["text"], point.score] for point in value]
    return [getattr(item, "embedding", item) for item in value]


def main() -> None:
    page, host = sys.argv[1:]
    results = {}
    for block in BLOCK.findall(Path(page).read_text(encoding="utf-8")):
        *_, name = re.findall(
            r"^(?:from|import) (openai|langchain_openai|llama_index|huggingface_hub|cohere|tritonclient|qdrant_client)",
            block,
            re.MULTILINE,
        )
        if importlib.util.find_spec(name) is None:
            continue
        namespace: dict[str, Any] = {}
        exec(compile(block.replace("127.0.0.1:8080", host), name, "exec"), namespace)
        found = next(namespace[key] for key in ("nearest", "vectors", "ranked", "hidden") if key in namespace)
        results[name] = plain(found)
    if "openai" in results:
        results["openai, more"] = openai(host)
    print(json.dumps(results))


def openai(host: str) -> dict[str, Any]:
    """300 texts, other forms of requests, and errors."""
    from openai import APIStatusError, OpenAI

    client = OpenAI(base_url=f"http://{host}/v1", api_key="none", max_retries=0)
    texts = [f"text {number}" for number in range(300)]
    many = client.embeddings.create(model="all-MiniLM-L6-v2", input=texts)
    short = client.embeddings.create(model="all-MiniLM-L6-v2", input=texts[:2], dimensions=8, encoding_format="float")
    errors = {}
    for name, arguments in {
        "model": {"model": "other", "input": "a"},
        "empty": {"model": "all-MiniLM-L6-v2", "input": []},
    }.items():
        try:
            client.embeddings.create(**arguments)  # type: ignore[arg-type]
        except APIStatusError as error:
            errors[name] = [type(error).__name__, error.code]
    return {
        "many": [item.embedding for item in many.data],
        "short": [item.embedding for item in short.data],
        "errors": errors,
        "models": [model.id for model in client.models.list()],
    }


if __name__ == "__main__":
    main()
