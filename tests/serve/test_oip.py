"""The Open Inference Protocol: tensors as JSON and as binary data, with the session's results."""

import asyncio
import json
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

import isorun
import served
import tiny
from isorun_serve import tensors
from onnx_text import graph

URL = "/v2/models/bert/infer"
FEEDS = tiny.feeds(2, 7)
HEADER = "inference-header-content-length"
TYPES = {
    **{"BOOL": ("bool", np.bool_), "BYTES": ("string", np.object_)},
    **{f"INT{bits}": (f"int{bits}", np.dtype(f"int{bits}")) for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": (f"uint{bits}", np.dtype(f"uint{bits}")) for bits in (8, 16, 32, 64)},
    **{"FP16": ("float16", np.float16), "FP32": ("float", np.float32)},
    "FP64": ("double", np.float64),
}
VALUES = {"BOOL": [True, False, True], "BYTES": ["a", "", "ü\x00"]}


def as_json(feeds: dict[str, np.ndarray] = FEEDS, **changes: Any) -> dict[str, Any]:
    inputs = [
        {"name": name, "shape": list(array.shape), "datatype": "INT64", "data": array.reshape(-1).tolist()}
        for name, array in feeds.items()
    ]
    return {"inputs": inputs, **changes}


def binary_of(answer: Any) -> dict[str, bytes]:
    """The binary data of each output."""
    length = int(answer.headers[HEADER])
    data, parts = answer.content[length:], {}
    for output in json.loads(answer.content[:length])["outputs"]:
        size = output["parameters"]["binary_data_size"]
        parts[output["name"]], data = data[:size], data[size:]
    assert data == b""
    return parts


@pytest.fixture(scope="module")
def expected(models: dict[str, Any]) -> np.ndarray:
    return np.array(models["bert"].run(["last_hidden_state"], FEEDS)[0])


@pytest.mark.parametrize("url", [URL, "/v2/models/bert/versions/1/infer"])
def test_json(client: TestClient, expected: np.ndarray, url: str) -> None:
    answer = client.post(url, json=as_json(id="7", outputs=[{"name": "last_hidden_state"}])).json()
    (output,) = answer["outputs"]
    assert (answer["model_name"], answer["model_version"], answer["id"]) == ("bert", "1", "7")
    assert (output["name"], output["datatype"], output["shape"]) == ("last_hidden_state", "FP32", [2, 7, 32])
    np.testing.assert_allclose(np.reshape(output["data"], output["shape"]), expected, atol=1e-6)
    nested = {name: array.tolist() for name, array in FEEDS.items()}
    of_mlserver = {"parameters": {"content_type": "np", "binary_data_output": None}, "outputs": None, "id": None}
    inputs = [
        {"name": name, "shape": [2, 7], "datatype": "INT64", "data": data, "parameters": {"content_type": "np"}}
        for name, data in nested.items()
    ]
    assert len(client.post(url, json={"inputs": inputs, **of_mlserver}).json()["outputs"]) == 2


def test_binary(client: TestClient, expected: np.ndarray) -> None:
    inputs = [
        {"name": name, "shape": [2, 7], "datatype": "INT64", "parameters": {"binary_data_size": array.nbytes}}
        for name, array in FEEDS.items()
    ]
    header = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    body = header + b"".join(array.tobytes() for array in FEEDS.values())
    answer = client.post(URL, content=body, headers={HEADER: str(len(header))})
    assert answer.status_code == 200, answer.text
    hidden = np.frombuffer(binary_of(answer)["last_hidden_state"], "<f4").reshape(2, 7, 32)
    np.testing.assert_allclose(hidden, expected, atol=1e-6)
    outputs = [{"name": "last_hidden_state", "parameters": {"binary_data": True}}]
    mixed = client.post(URL, json=as_json(outputs=outputs))
    np.testing.assert_array_equal(np.frombuffer(binary_of(mixed)["last_hidden_state"], "<f4"), hidden.reshape(-1))


@pytest.fixture(scope="module")
def every_type() -> Any:
    """A session that returns its inputs, one of each type."""
    inputs, outputs = (", ".join(f"{kind}[n] {name}{end}" for name, (kind, _) in TYPES.items()) for end in ("", "_out"))
    nodes = " ".join(f"{name}_out = Identity ({name})" for name in TYPES)
    with isorun.Session(graph(f"types ({inputs}) => ({outputs}) {{ {nodes} }}"), "ort-cpu") as session:
        yield session


@pytest.mark.parametrize("binary", [False, True])
def test_every_type_comes_back(every_type: isorun.Session, binary: bool) -> None:
    values = {name: VALUES.get(name, [0, 1, 100]) for name in TYPES}
    inputs, parts = [], []
    for name, numbers in values.items():
        tensor: dict[str, Any] = {"name": name, "shape": [3], "datatype": name}
        if binary and name == "BYTES":
            texts = [text.encode() for text in VALUES["BYTES"]]
            parts.append(b"".join(len(text).to_bytes(4, "little") + text for text in texts))
        elif binary:
            parts.append(np.array(numbers, TYPES[name][1]).tobytes())
        tensor |= {"parameters": {"binary_data_size": len(parts[-1])}} if binary else {"data": numbers}
        inputs.append(tensor)
    header = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": binary}}).encode()
    with served.client({"types": every_type}) as client:
        headers = {HEADER: str(len(header))} if binary else {}
        answer = client.post("/v2/models/types/infer", content=header + b"".join(parts), headers=headers)
        described = client.get("/v2/models/types").json()
    assert answer.status_code == 200, answer.text
    assert {tensor["name"]: tensor["datatype"] for tensor in described["inputs"]} == {name: name for name in TYPES}
    assert described["inputs"][0]["shape"] == [-1]
    if binary:
        assert list(binary_of(answer).values()) == parts
    else:
        assert {output["name"]: output["data"] for output in answer.json()["outputs"]} == {
            f"{name}_out": numbers for name, numbers in values.items()
        }


@pytest.mark.parametrize(
    ("datatype", "value"), [("FP16", 7e4), ("FP32", 1e60), ("FP32", float("nan")), ("UINT8", -1), ("INT8", 300)]
)
def test_number_outside_its_range(every_type: isorun.Session, datatype: str, value: float) -> None:
    inputs = [{"name": name, "shape": [1], "datatype": name, "data": VALUES.get(name, [0])[:1]} for name in TYPES]
    inputs[list(TYPES).index(datatype)]["data"] = [value]
    with served.client({"types": every_type}) as client:
        answer = client.post("/v2/models/types/infer", content=json.dumps({"inputs": inputs}))
    assert (answer.status_code, "outside its range" in answer.json()["error"]) == (400, True)


def test_brackets_in_binary_data_are_no_lists() -> None:
    model = graph("g (uint8[N] x) => (uint8[1] y) { y = ReduceMax <keepdims = 1> (x) }")
    count = 500_001
    tensor = {"name": "x", "shape": [count], "datatype": "UINT8", "parameters": {"binary_data_size": count}}
    header = json.dumps({"inputs": [tensor]}).encode()
    with isorun.Session(model, "ort-cpu") as session, served.client({"m": session}) as client:
        headers = {HEADER: str(len(header))}
        answer = client.post("/v2/models/m/infer", content=header + b"[" * count, headers=headers)
    assert (answer.status_code, answer.json()["outputs"][0]["data"]) == (200, [ord("[")])


def test_sizes_after_one_of_0_are_not_in_nested_lists() -> None:
    model = graph("g (float[N, M, 3] x) => (float[N, M, 3] y) { y = Neg (x) }")
    with isorun.Session(model, "ort-cpu") as session, served.client({"m": session}) as client:
        for data, shape, status in (([[], []], [2, 0, 3], 200), ([], [2, 0, 3], 200), ([[], []], [3, 0, 3], 400)):
            tensor = {"name": "x", "datatype": "FP32", "shape": shape, "data": data}
            answer = client.post("/v2/models/m/infer", json={"inputs": [tensor]})
            assert answer.status_code == status, answer.text


def test_inputs_that_disagree_in_a_named_size() -> None:
    model = graph("g (float[N, M] x, float[N, M] z) => (float[N, M] y) { y = Add (x, z) }")
    with isorun.Session(model, "ort-cpu") as session, served.client({"m": session}) as client:
        sizes = {"x": 2, "z": 3}
        tensors = [{"name": name, "datatype": "FP32", "shape": [1, m], "data": [1.0] * m} for name, m in sizes.items()]
        answer = client.post("/v2/models/m/infer", json={"inputs": tensors})
        assert (answer.status_code, "same M, got 2 and 3" in answer.json()["error"]) == (400, True)


@pytest.mark.parametrize(
    ("error", "message"), [(isorun.BackendFailed("index 9"), "index 9"), (isorun.WorkerDied("killed"), "WorkerDied")]
)
def test_the_client_is_told_what_the_runtime_says_of_its_tensors(
    client: TestClient, models: dict[str, Any], monkeypatch: Any, error: Exception, message: str
) -> None:
    async def arun(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(models["bert"], "arun", arun)
    answer = client.post(URL, json=as_json())
    assert (answer.status_code, message in answer.json()["error"]) == (500, True)


def test_what_json_cannot_hold(every_type: isorun.Session) -> None:
    numbers = np.array([1, np.nan, np.inf], np.float32)
    inputs = [{"name": name, "shape": [3], "datatype": name, "data": VALUES.get(name, [0, 1, 2])} for name in TYPES]
    inputs[list(TYPES).index("FP32")] = {
        **{"name": "FP32", "shape": [3], "datatype": "FP32", "parameters": {"binary_data_size": 12}}
    }
    with served.client({"types": every_type}) as client:
        for binary in (True, False):
            outputs = [{"name": "FP32_out", "parameters": {"binary_data": binary}}]
            header = json.dumps({"inputs": inputs, "outputs": outputs}).encode()
            headers = {HEADER: str(len(header))}
            answer = client.post("/v2/models/types/infer", content=header + numbers.tobytes(), headers=headers)
            if binary:
                assert binary_of(answer) == {"FP32_out": numbers.tobytes()}
            else:
                assert (answer.status_code, "Request it as binary data" in answer.json()["error"]) == (500, True)


def test_descriptions_and_health(client: TestClient) -> None:
    assert client.get("/v2").json()["extensions"] == ["binary_tensor_data"]
    assert client.get("/v2/models/bert").json()["outputs"][0] == {
        **{"name": "last_hidden_state", "datatype": "FP32", "shape": [-1, -1, 32]}
    }
    assert client.get("/v2/models/bert/versions/1").status_code == 200
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/bert/ready", "/v2/models/bert/versions/1/ready"):
        assert client.get(path).status_code == 200
    client.app.state.traffic.draining = True  # type: ignore[attr-defined]  # an application of FastAPI
    for path in ("/v2/health/ready", "/ready"):
        answer = client.get(path)
        assert (answer.status_code, answer.json(), answer.headers["connection"]) == (503, {"ready": False}, "close")
    for path, message in (
        ("/v2/models/none/ready", "no model 'none'"),
        ("/v2/models/none/config", "no model 'none/config'"),
        ("/v2/models/bert/versions/2", "no version '2'"),
        ("/v2/models/bert/config", "The model 'bert' has no path /config"),
    ):
        answer = client.get(path)
        assert answer.status_code == 404
        assert message in answer.json()["error"]


def changed(**changes: Any) -> dict[str, Any]:
    """A request with another first input."""
    request = as_json()
    request["inputs"][0] |= changes
    return request


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (changed(name="input_idz"), "no such input"),
        (changed(datatype="INT32"), "must be INT64, got INT32"),
        (changed(shape=[2, 8]), "needs 16 values, got 14"),
        (changed(shape=[2, -7]), "greater than or equal to 0"),
        (changed(shape=[2**31, 2**31]), "values, got 14"),
        (changed(shape=[0, 2**70], data=[]), "dimension that is too large"),
        (changed(shape=[1] * 70 + [14]), "too many dimensions"),
        ({"inputs": as_json()["inputs"][:1] * 2}, "has it twice"),
        (changed(data=None), "data is missing"),
        (changed(data=[[1], [2, 3]]), "lists of one length"),
        (changed(data=[0.5] * 14), "must be int64"),
        (changed(data=["a"] * 14), "must be int64"),
        (changed(data=[True] * 14), "must be int64"),
        (changed(data=[[True, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6, 7]]), "both true or false and others"),
        (changed(data=[2**63] * 14), "outside its range"),
        (changed(data=[99_999] * 14), "embedding table"),
        (changed(data=None, parameters={"binary_data_size": 8}), "at most the 0 bytes"),
        (changed(parameters={"binary_data_size": True}), "valid integer"),
        (changed(parameters={"shared_memory_region": "r"}), "unknown field 'shared_memory_region'"),
        (changed(parameters={"content_type": "base64"}), "'np' or 'str'"),
        (changed(parameters={"binary_data_size": 8}), "cannot both be set"),
        (changed(dta=[]), "unknown field 'dta'; did you mean 'data'?"),
        (changed(data=np.zeros((7, 2), int).tolist()), "nested as [7, 2], and shape is [2, 7]"),
        (as_json(outputs=[{"name": "hidden"}]), "no output 'hidden'"),
        (as_json(outputs=[{"name": "last_hidden_state", "parameters": {"classification": 2}}]), "'classification'"),
        (as_json(outputs=[{"name": "last_hidden_state", "parameters": {"binary_data": 1}}]), "valid boolean"),
        (as_json(parameters={"priority": 1}), "unknown field 'priority'"),
        (as_json(parameters={"timeout": 0}), "greater than 0"),
        (as_json(parameters={"timeout": 10**320}), "less than 18446744073709551616"),
        (as_json(output=[]), "unknown field 'output'; did you mean 'outputs'?"),
        ({"inputs": []}, "No feed for"),
        ({}, "inputs: Field required"),
    ],
)
def test_errors(client: TestClient, body: dict[str, Any], message: str) -> None:
    answer = client.post(URL, json=body)
    assert (answer.status_code, list(answer.json())) == (400, ["error"])
    assert message in answer.json()["error"]


@pytest.mark.parametrize("field", ["inputs", "outputs"])
def test_the_number_of_tensors_has_a_limit(models: dict[str, Any], field: str) -> None:
    body = as_json(**{field: [{"name": "a", "shape": [1], "datatype": "FP32"} if field == "inputs" else {"name": "a"}]})
    with served.client(models) as client:
        answer = client.post(URL, json={**body, field: body[field] * 2049})
    assert (answer.status_code, f"{field}: " in answer.json()["error"], "2048" in answer.text) == (400, True, True)


@pytest.mark.parametrize(
    ("length", "message"), [("-1", "at most"), ("99999", "at most"), ("9" * 5000, "at most"), ("2", "Field required")]
)
def test_header_lengths(client: TestClient, length: str, message: str) -> None:
    answer = client.post(URL, content=b"{}more", headers={HEADER: length})
    assert (answer.status_code, message in answer.json()["error"]) == (400, True)


def test_deadlines_are_in_microseconds(client: TestClient, models: dict[str, Any], monkeypatch: Any) -> None:
    timeouts = []

    async def arun(*_: Any, timeout: float | None) -> Any:
        timeouts.append(timeout)
        raise isorun.DeadlineExceeded("late")

    monkeypatch.setattr(models["bert"], "arun", arun)
    answer = client.post(URL, json=as_json(parameters={"timeout": 500_000}))
    assert (answer.status_code, answer.json(), timeouts) == (504, {"error": "late"}, [0.5])


@pytest.mark.parametrize(
    ("kind", "data", "expected"),
    [
        ("UINT64", [2**64 - 1, 1], [2**64 - 1, 1]),
        ("UINT64", [2**63, 0], [2**63, 0]),
        ("FP64", [2**70, 1], [2.0**70, 1]),
        ("FP32", [2**65, 1], [2.0**65, 1]),
        ("FP32", "[1e400, 1]", None),
        ("UINT64", [2**64, 1], None),
        ("INT64", [2**63, -1], None),
    ],
)
def test_large_numbers_in_json(kind: str, data: Any, expected: list[float] | None) -> None:
    onnx_type, dtype = TYPES[kind]
    model = graph(f"g ({onnx_type}[n] x) => ({onnx_type}[n] y) {{ y = Identity (x) }}")
    text = data if isinstance(data, str) else json.dumps(data)
    body = f'{{"inputs": [{{"name": "x", "shape": [2], "datatype": "{kind}", "data": {text}}}]}}'
    with isorun.Session(model, "ort-cpu") as session, served.client({"m": session}) as client:
        answer = client.post("/v2/models/m/infer", content=body)
    if expected is None:
        assert (answer.status_code, "outside its range" in answer.text or "must be" in answer.text) == (400, True)
    else:
        values = np.array(json.loads(answer.text)["outputs"][0]["data"], dtype)
        np.testing.assert_array_equal(values, np.array(expected, dtype))


@pytest.mark.parametrize(("rows", "on_the_loop"), [(1, True), (1500, False)])
def test_large_requests_and_answers_are_converted_off_the_event_loop(
    models: dict[str, Any], monkeypatch: pytest.MonkeyPatch, rows: int, on_the_loop: bool
) -> None:
    called: dict[str, bool] = {}

    def recorded(name: str) -> None:
        function = getattr(tensors, name)

        def record(*arguments: Any, **settings: Any) -> Any:
            try:
                called[name] = asyncio.get_running_loop().is_running()
            except RuntimeError:
                called[name] = False
            return function(*arguments, **settings)

        monkeypatch.setattr(tensors, name, record)

    recorded("read")
    recorded("write")
    body = as_json(tiny.feeds(rows, 7), outputs=[{"name": "last_hidden_state"}])
    with served.client(models) as client:
        answer = client.post(URL, json=body)
    assert answer.json()["outputs"][0]["shape"] == [rows, 7, tiny.WIDTH]
    assert called == {"read": on_the_loop, "write": on_the_loop}
