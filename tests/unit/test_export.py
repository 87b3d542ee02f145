"""Numbers that are taken away come back as they were, with what made them, and execute nowhere."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest

from mha_core.export import FORMATS, defused, export_numbers
from mha_core.view import View

LABELS = ["she", "=1+1", "+a", "-1", "@x", 'say "hi", ok;', "שלום", "#hash", "\ud83d", "naïve"]
MADE = {
    "text": 'she, =HYPERLINK("x");\n+1', "model": "tiny", "model_sha256": "ab12", "heads": ["L1H0", "L1H1"],
    "interventions": "no interventions", "index_base": 0, "versions": {"torch": "2.13.0"},
}  # fmt: skip


def layer(kind: str = "layer", **meta: object) -> View:
    maps = np.random.default_rng(0).random((2, 10, 10), dtype=np.float32)
    described = {"query_labels": LABELS, "key_labels": LABELS, "titles": ["H0", "H1"], "id": "x", "palette": {}, **meta}
    return View(kind, {"maps": maps}, described, MADE)


def read(data: bytes) -> tuple[list[str], list[str], list[list[str]]]:
    """Comment lines, column names and rows of an exported CSV."""
    text = data.decode("utf-8-sig")
    first, _, _ = text.partition("\r\n")
    n = int(first.split()[2])
    lines = text.split("\r\n")
    rows = list(csv.reader(io.StringIO("\r\n".join(lines[n:]))))
    return lines[:n], rows[0], rows[1:]


def test_csv_has_a_row_per_cell_with_exact_numbers() -> None:
    view = layer()
    comments, columns, rows = read(export_numbers(view, "csv"))
    assert all(line.startswith("# ") for line in comments)
    assert columns == ["head", "query", "query label", "key", "key label", "weight"]
    assert len(rows) == 200
    weights = np.array([float(row[-1]) for row in rows], np.float32).reshape(2, 10, 10)
    np.testing.assert_array_equal(weights, view.arrays["maps"])
    assert rows[15][:5] == ["L1H0", "1", "'=1+1", "5", 'say "hi", ok;']
    assert {row[0] for row in rows} == {"L1H0", "L1H1"}


def test_csv_executes_nothing() -> None:
    _, _, rows = read(export_numbers(layer(), "csv"))
    labels = {row[2] for row in rows}
    assert {"'=1+1", "'+a", "'-1", "'@x", "she", "שלום", "#hash", "\\ud83d", "naïve"} <= labels
    for row in rows:
        assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) for cell in row)
        float(row[-1])  # numbers stay numbers


@pytest.mark.parametrize("text", ["=1", "+1", "-1", "@a", "\tx", "\rx", " =1", "＝1"])
def test_what_a_spreadsheet_executes_is_defused(text: str) -> None:
    assert defused(text) == "'" + text


@pytest.mark.parametrize("text", ["a=1", "", " ", "she", "'=1", "1-2", "∅"])
def test_other_labels_stay_as_they_are(text: str) -> None:
    assert defused(text) == text


def test_the_provenance_stands_above_the_table_one_value_a_line() -> None:
    comments, _, _ = read(export_numbers(layer(unit="attention weight α"), "csv"))
    said = {name: json.loads(value) for name, value in (line[2:].split(": ", 1) for line in comments[1:])}
    assert said["text"] == MADE["text"]
    assert said["heads"] == MADE["heads"]
    assert said["versions.torch"] == "2.13.0"
    assert said["kind"] == "layer"
    assert said["unit"] == "attention weight α"
    for line in comments:  # a spreadsheet splits lines at separators; no such part may be executed
        for part in line.replace(";", ",").split(","):
            assert not part.lstrip(' "').startswith(("=", "+", "@"))


def test_json_comes_back_as_it_was() -> None:
    view = layer()
    back = json.loads(export_numbers(view, "json"))
    assert back["kind"] == "layer"
    assert back["provenance"] == MADE
    assert back["meta"]["key_labels"] == LABELS
    assert not {"palette", "id"} & set(back["meta"])
    np.testing.assert_array_equal(np.array(back["arrays"]["maps"], np.float32), view.arrays["maps"])


def test_json_has_no_nan_and_numbers_are_short() -> None:
    data = export_numbers(View("matrix", {"map": np.array([[np.nan, 0.1, np.inf]], np.float32)}), "json")
    assert json.loads(data)["arrays"]["map"] == [[None, 0.1, None]]


def test_npz_comes_back_as_it_was() -> None:
    view = layer()
    with np.load(io.BytesIO(export_numbers(view, "npz")), allow_pickle=False) as file:
        np.testing.assert_array_equal(file["maps"], view.arrays["maps"])
        assert json.loads(str(file["provenance"])) == MADE
        assert json.loads(str(file["meta"]))["query_labels"] == LABELS


def test_an_overview_is_its_measure() -> None:
    values = np.array([[0.25, 0.5], [0.75, 1]], np.float32)
    maps = np.zeros((2, 2, 4, 4), np.uint8)
    view = View("overview", {"maps": maps, "values": values}, {"values_label": "first token"}, MADE)
    _, columns, rows = read(export_numbers(view, "csv"))
    assert columns == ["layer", "head", "first token"]
    assert rows == [["0", "0", "0.25"], ["0", "1", "0.5"], ["1", "0", "0.75"], ["1", "1", "1.0"]]


def test_a_matrix_in_16_bits_is_scaled_back() -> None:
    exact = np.array([[0.0, 0.5], [0.25, 2.0]])
    packed = np.rint(exact / 2 * 65535).astype(np.uint16)
    meta = {"query_labels": ["a", "b"], "key_labels": ["a", "b"], "scale_to": 2.0, "title": "L0H1"}
    view = View("matrix", {"map": packed}, meta, {"quantity": "value-weighted ‖α v W_O‖"})
    _, columns, rows = read(export_numbers(view, "csv"))
    assert columns[-1] == "value"
    assert [row[0] for row in rows] == ["L0H1"] * 4
    np.testing.assert_allclose([float(row[-1]) for row in rows], exact.ravel(), atol=2e-5)
    with np.load(io.BytesIO(export_numbers(view, "npz"))) as file:
        np.testing.assert_allclose(file["map"], exact, atol=2e-5)


def test_pooled_maps_name_the_first_position_of_each_block_and_say_so() -> None:
    maps = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    labels = list("abcdefgh")
    view = View("layer", {"maps": maps}, {"query_labels": labels[:4], "key_labels": labels, "block": [2, 3]}, {})
    comments, _, rows = read(export_numbers(view, "csv"))
    assert "# block: [2, 3]" in comments
    assert rows[5][1:] == ["2", "c", "6", "g", "5.0"]


def test_the_strongest_keys_of_a_long_text() -> None:
    values = np.array([[[0.1, 0.7], [0.6, 0.3]]], np.float32)
    keys = np.array([[[0, 2], [1, 0]]], np.int32)
    meta = {"query_labels": ["a", "b", "c"], "key_labels": ["a", "b", "c"], "titles": ["L0H3"]}
    _, _, rows = read(export_numbers(View("text", {"top_values": values, "top_keys": keys}, meta, {}), "csv"))
    assert rows[:2] == [["L0H3", "0", "a", "2", "c", "0.7"], ["L0H3", "0", "a", "0", "a", "0.1"]]


def test_positions_are_those_of_the_text_where_tokens_are_hidden() -> None:
    meta = {"query_labels": ["b"], "key_labels": ["b", "d"], "query_positions": [1], "key_positions": [1, 3]}
    _, _, rows = read(export_numbers(View("lines", {"maps": np.ones((1, 1, 2), np.float32)}, meta, {}), "csv"))
    assert [row[1:5] for row in rows] == [["1", "b", "1", "b"], ["1", "b", "3", "d"]]


def test_a_table_and_anything_else() -> None:
    table = View("table", {}, {"rows": [{"head": "=cmd", "effect": -0.5}, {"head": "L0H1", "rank": 2}]}, {})
    _, columns, rows = read(export_numbers(table, "csv"))
    assert columns == ["head", "effect", "rank"]
    assert rows == [["'=cmd", "-0.5", ""], ["L0H1", "", "2"]]
    other = View("curve", {"x": np.arange(2), "y": np.ones((1, 2), np.float32)})
    _, columns, rows = read(export_numbers(other, "csv"))
    assert columns == ["array", "axis 0", "axis 1", "value"]
    assert rows == [["x", "0", "", "0"], ["x", "1", "", "1"], ["y", "0", "0", "1.0"], ["y", "0", "1", "1.0"]]


@pytest.mark.parametrize("fmt", FORMATS)
def test_equal_views_give_equal_bytes(fmt: str) -> None:
    assert export_numbers(layer(), fmt) == export_numbers(layer(), fmt)


def test_another_format_is_refused() -> None:
    with pytest.raises(ValueError, match="csv, json, npz; 'xlsx' was asked for"):
        export_numbers(layer(), "xlsx")
