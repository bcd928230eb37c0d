"""The tables of backends and of verified hardware are those of the classes and certificates in this repository."""

import certificates as tool


def test_tables_are_up_to_date() -> None:
    stale = [path.name for path in tool.DOCUMENTS if tool.updated(path) != path.read_text(encoding="utf-8")]
    assert stale == [], "run python tools/certificates.py"


def test_every_backend_has_a_row() -> None:
    rows = [line.split("|")[1].strip(" `") for line in tool.table().splitlines()[2:]]
    assert set(tool.backends()) <= {row.partition(":")[0] for row in rows}
    assert {"ort-cpu", "openvino", "tract", "tensorrt", "deepsparse"} <= set(rows)


def test_readme_table_states_what_backends_declare() -> None:
    rows = {line.split("|")[1].strip(" `"): line for line in tool.backend_table().splitlines()[2:]}
    assert rows.keys() == tool.backends().keys()
    assert "| cpu | fp32, int8 |" in rows["ort-cpu"]
    assert "not verified on hardware" in rows["tensorrt"]


def test_backend_without_a_certificate_is_not_verified() -> None:
    document = {
        **{"backend": "ort-ep:npu", "date": "2026-11-25", "versions": {"isorun": "1", "npu": "2.0"}},
        "hardware": {"device": "NPU 3", "cores": 8, "system": "Linux"},
        **{"proved": ["a", "b"], "skipped": {}, "known_failures": {"test_x": {}}, "failed": {}, "not_run": {}},
    }
    assert list(tool._rows([document], ["ort-ep", "tensorrt"])) == [
        "| `ort-ep:npu` | NPU 3, 8 cores, Linux; 2026-11-25 | npu 2.0 | 2 proved, 1 known to fail |",
        "| `tensorrt` | not verified on hardware | | |",
    ]


def test_certificates_record_no_failure() -> None:
    assert [(document["backend"], document["failed"]) for document in tool.certificates() if document["failed"]] == []
