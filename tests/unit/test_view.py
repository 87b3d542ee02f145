"""`View` travels without loss; pooling never loses a strong weight."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest

from mha_core import palette
from mha_core.paths import asset
from mha_core.view import View, light_difference, max_pool, to_uint16, top_of_rows


def test_a_view_comes_back_as_it_was() -> None:
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {
        "thumbnails": rng.integers(0, 256, (2, 3, 5, 7), dtype=np.uint8),  # 210 bytes: then padding
        "maps": rng.random((3, 5, 7), dtype=np.float32),
        "steps": rng.integers(0, 65536, (3, 3), dtype=np.uint16),  # 18 bytes: padding again
        "places": rng.integers(-9, 9, (4,), dtype=np.int32),
        "empty": np.zeros((0, 3), np.float32),
    }
    meta = {"labels": ["she", "<b>", "שלום", "\ud83d", "🧭"], "range": [0, 1], "selected": None}
    back = View.unpack(View("layer", arrays, meta, {"text": "I love"}).pack())
    assert back.kind == "layer"
    assert back.meta == meta
    assert back.provenance == {"text": "I love"}
    assert list(back.arrays) == list(arrays)
    for name, array in arrays.items():
        assert back.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(back.arrays[name], array)


def test_header_and_arrays_start_at_multiples_of_four_bytes() -> None:
    arrays: dict[str, np.ndarray] = {"a": np.arange(3, dtype=np.uint8), "b": np.ones(2, np.float32)}
    packed = View("overview", arrays, {"x": "é"}).pack()
    (length,) = struct.unpack_from("<I", packed)
    header = json.loads(packed[4 : 4 + length])
    assert length % 4 == 0
    assert [entry["offset"] % 4 for entry in header["arrays"]] == [0, 0]
    start = 4 + length + header["arrays"][1]["offset"]
    assert struct.unpack_from("<2f", packed, start) == (1.0, 1.0)


def test_wider_numbers_are_narrowed_and_strided_arrays_written_in_order() -> None:
    maps = np.arange(12, dtype=np.float64).reshape(3, 4).T[::2]
    back = View.unpack(View("x", {"maps": maps, "mask": maps > 4, "ids": np.array([5, -6])}).pack())
    assert [back.arrays[name].dtype.name for name in ("maps", "mask", "ids")] == ["float32", "uint8", "int32"]
    np.testing.assert_array_equal(back.arrays["maps"], maps)


@pytest.mark.parametrize(
    ("arrays", "meta", "error"),
    [
        ({"a": np.array([2**40])}, {}, ValueError),
        ({"a": np.array(["text"])}, {}, TypeError),
        ({}, {"range": [0, float("nan")]}, ValueError),
        ({}, {"label": object()}, TypeError),
    ],
)
def test_what_cannot_travel_is_refused(
    arrays: dict[str, np.ndarray], meta: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        View("x", arrays, meta).pack()


@pytest.mark.parametrize("cut", [0, 3, 10, -1])
def test_damaged_bytes_are_refused(cut: int) -> None:
    packed = View("x", {"a": np.arange(4, dtype=np.float32)}).pack()
    with pytest.raises(ValueError, match=r"view|data|header"):
        View.unpack(packed[:cut])


@pytest.mark.parametrize(
    ("queries", "keys", "size", "block"),
    [
        (8, 8, 4, (2, 2)),
        (10, 7, 4, (3, 2)),
        (5, 33, 8, (1, 5)),
        (4, 4, 4, (1, 1)),
        (1, 9, 1, (1, 9)),
        (129, 128, 32, (5, 4)),
    ],
)
def test_every_cell_is_the_maximum_of_its_block(queries: int, keys: int, size: int, block: tuple[int, int]) -> None:
    weights = np.random.default_rng(1).random((2, 3, queries, keys), dtype=np.float32)
    pooled, found = max_pool(weights, size)
    assert found == block
    assert pooled.shape == (2, 3, -(-queries // block[0]), -(-keys // block[1]))
    assert max(pooled.shape[-2:]) <= size
    for row in range(pooled.shape[-2]):
        for column in range(pooled.shape[-1]):
            rows = slice(row * block[0], (row + 1) * block[0])
            columns = slice(column * block[1], (column + 1) * block[1])
            expected = weights[..., rows, columns].max(axis=(-2, -1))
            np.testing.assert_array_equal(pooled[..., row, column], expected)


def test_differences_and_other_kinds_of_numbers_are_pooled_alike() -> None:
    below_zero = -1 - np.random.default_rng(3).random((2, 7, 10), dtype=np.float32)
    expected = max_pool(below_zero.astype(np.float64), 4)
    np.testing.assert_array_equal(max_pool(below_zero, 4)[0], expected[0])
    assert expected[0].max() < -1, "the edge of an uneven map is not zero"


def test_maps_without_their_first_rows_and_columns_are_pooled_as_copies_of_them_are() -> None:
    weights = np.random.default_rng(4).random((2, 130, 131), dtype=np.float32)
    for part in (weights[:, 1:, 1:], weights[:, :, ::-1], weights[:, ::2], weights.transpose(0, 2, 1)):
        expected = max_pool(part.astype(np.float64), 25)[0]
        np.testing.assert_array_equal(max_pool(part, 25)[0], expected)
    weights.flags.writeable = False
    np.testing.assert_array_equal(max_pool(weights, 25)[0], max_pool(weights.astype(np.float64), 25)[0])


def test_small_maps_are_left_exact() -> None:
    weights = np.random.default_rng(2).random((3, 6, 5))
    pooled, block = max_pool(weights, 6)
    assert block == (1, 1)
    np.testing.assert_array_equal(pooled, weights)


def test_pooling_needs_two_axes_and_a_size() -> None:
    with pytest.raises(ValueError, match="size of at least 1"):
        max_pool(np.ones((2, 2)), 0)
    with pytest.raises(ValueError, match="1 axes"):
        max_pool(np.ones(4), 2)


@pytest.mark.parametrize("scale_to", [(0.0, 1.0), (0.0, 3.7), (-1.0, 1.0)])
def test_65536_steps_keep_four_digits(scale_to: tuple[float, float]) -> None:
    low, high = scale_to
    values = np.random.default_rng(3).uniform(low, high, (64, 64)).astype(np.float32)
    values[0, :2] = low, high
    steps = to_uint16(values, scale_to)
    assert steps.dtype == np.uint16
    assert steps[0, :2].tolist() == [0, 65535]
    back = low + steps / 65535 * (high - low)
    assert np.abs(back - values).max() <= (high - low) / 131_070 * 1.01


def test_steps_need_ends_in_order_and_numbers() -> None:
    with pytest.raises(ValueError, match="low end below"):
        to_uint16([0.5], (1.0, 0.0))
    with pytest.raises(ValueError, match="NaN"):
        to_uint16([0.5, np.nan])


def test_the_top_of_rows_is_what_sorting_finds() -> None:
    weights = np.random.default_rng(4).random((2, 5, 9), dtype=np.float32)
    values, places = top_of_rows(weights, 4)
    np.testing.assert_array_equal(values, np.sort(weights, axis=-1)[..., ::-1][..., :4])
    np.testing.assert_array_equal(np.take_along_axis(weights, places, axis=-1), values)
    assert places.dtype == np.int32
    assert top_of_rows(weights, 50)[0].shape == (2, 5, 9)
    with pytest.raises(ValueError, match="k of at least 1"):
        top_of_rows(weights, 0)


def luminance(colour: str) -> float:
    """Relative luminance, 0 to 1 (WCAG 2)."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_sequential_scales_only_fall_or_only_rise_in_lightness() -> None:
    light = [luminance(colour) for colour in palette.sequential("light")]
    dark = [luminance(colour) for colour in palette.sequential("dark")]
    assert light == sorted(light, reverse=True)
    assert dark == sorted(dark)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_diverging_scales_are_balanced_around_a_neutral_middle(theme: palette.Theme) -> None:
    scale = palette.diverging(theme)
    middle = len(scale) // 2
    red, green, blue = (int(scale[middle][i : i + 2], 16) for i in (1, 3, 5))
    assert max(red, green, blue) - min(red, green, blue) < 20
    away = [abs(luminance(colour) - luminance(scale[middle])) for colour in scale]
    assert away[: middle + 1] == sorted(away[: middle + 1], reverse=True)
    assert away[middle:] == sorted(away[middle:])


def test_colour_stops_run_from_0_to_1() -> None:
    three = palette.stops(["#000000", "#888888", "#ffffff"])
    assert three == [[0.0, "#000000"], [0.5, "#888888"], [1.0, "#ffffff"]]
    with pytest.raises(ValueError, match="at least two"):
        palette.stops(["#000000"])


def test_a_missing_asset_is_said_in_a_sentence() -> None:
    assert asset("maps.js").is_file()
    with pytest.raises(FileNotFoundError, match=r"nowhere\.js.*installation is incomplete"):
        asset("nowhere.js")


# ---------------------------------------------------------------- long causal maps


def causal_map(size: int) -> np.ndarray:
    return to_uint16(np.tril(np.random.default_rng(5).random((size, size), dtype=np.float32)))


@pytest.mark.parametrize("dtype", [np.uint16, np.float32])
def test_a_long_causal_map_travels_without_the_future_and_arrives_whole(dtype: type) -> None:
    steps: np.ndarray = causal_map(600).astype(dtype)
    sent = View("matrix", {"map": steps, "more": np.arange(3)}, {"causal": True}).pack()
    assert len(sent) < 0.51 * steps.nbytes
    assert b'"lower":true' in sent
    found = View.unpack(sent)
    np.testing.assert_array_equal(found.arrays["map"], steps)
    assert found.arrays["map"].dtype == dtype
    np.testing.assert_array_equal(found.arrays["more"], [0, 1, 2])


@pytest.mark.parametrize("spoilt", ["a cell of the future", "not causal", "not square", "short", "a blank cell"])
def test_any_other_map_travels_cell_by_cell(spoilt: str) -> None:
    steps, meta = causal_map(600 if spoilt != "short" else 300), {"causal": spoilt != "not causal"}
    array = steps[:-1] if spoilt == "not square" else steps.astype(np.float32) if spoilt == "a blank cell" else steps
    if spoilt == "a blank cell":
        array[17, 18] = np.nan
    if spoilt == "a cell of the future":
        array[17, 18] = 1
    sent = View("matrix", {"map": array}, meta).pack()
    assert b'"lower"' not in sent
    np.testing.assert_array_equal(View.unpack(sent).arrays["map"], array)


# ---------------------------------------------------------------- long maps of small weights


def small_weights(size: int) -> np.ndarray:
    rng = np.random.default_rng(6)
    return to_uint16(rng.random((size, size), dtype=np.float32) ** 40)


@pytest.mark.parametrize("shape", ["square", "causal", "three heads"])
def test_small_weights_travel_in_a_byte_each_and_arrive_as_they_were(shape: str) -> None:
    steps = small_weights(512)
    steps[3, :3] = 254, 255, 256
    array = {"square": steps, "causal": np.tril(steps), "three heads": np.stack([steps, steps.T, steps[::-1]])}[shape]
    sent = View("layer", {"before": np.arange(3), "map": array, "after": np.arange(5)}, {"causal": True}).pack()
    assert len(sent) < (0.4 if shape == "causal" else 0.75) * array.nbytes
    found = View.unpack(sent).arrays
    np.testing.assert_array_equal(found["map"], array)
    assert found["map"].dtype == np.uint16
    np.testing.assert_array_equal(found["after"], np.arange(5))


def test_small_differences_travel_in_a_byte_each_and_none_stays_none() -> None:
    rng = np.random.default_rng(7)
    array = np.tril((rng.random((600, 600), dtype=np.float32) - np.float32(0.5)) ** 21).astype(np.float32)
    array[2, 1] = -0.25
    top = float(np.abs(array).max())
    view = View("matrix", {"map": array}, {"range": [-top, top], "diverging": True, "causal": True})
    light = light_difference(view)
    sent = light.pack()
    assert len(sent) < 0.4 * array.nbytes
    found = View.unpack(sent).arrays["map"].astype(np.float64)
    np.testing.assert_array_equal(found, light.arrays["map"])
    low, high = light.meta["scale_to"]
    values = low + found * (high - low) / 65535
    assert np.abs(values - array).max() <= top / 65000
    assert np.abs(values[np.triu_indices(600, 1)]).max() < 1e-12
    short = View("matrix", {"map": array[:9, :9]}, view.meta)
    assert light_difference(short) is short


def test_large_weights_stay_in_two_bytes() -> None:
    steps = np.random.default_rng(8).integers(0, 65536, (600, 600), dtype=np.uint16)
    sent = View("matrix", {"map": steps}).pack()
    assert b'"small"' not in sent
    np.testing.assert_array_equal(View.unpack(sent).arrays["map"], steps)


def test_a_spoilt_long_map_is_refused_in_a_sentence() -> None:
    sent = View("matrix", {"map": small_weights(512)}).pack()
    with pytest.raises(ValueError, match="beyond the packed data"):
        View.unpack(sent[:-400])
    (length,) = struct.unpack_from("<I", sent)
    with pytest.raises(ValueError, match="promises"):
        View.unpack(sent[: 4 + length] + b"\0" + sent[5 + length :].replace(b"\xff", b"\x00", 1))
