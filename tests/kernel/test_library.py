"""The native recurrence against a loop in double precision, on every path that this CPU can run."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit import kernel
from elmokit.errors import ConfigError
from elmokit.kernel import library

ALL = (1 << 6) - 1
PATHS = {
    "plain": library.PLAIN,
    "avx2": library.PLAIN | library.AVX2,
    "avx2 vnni": library.PLAIN | library.AVX2 | library.AVX_VNNI,
    "avx512": library.PLAIN | library.AVX2 | library.AVX512,
    "avx512 bf16": library.PLAIN | library.AVX512 | library.AVX512_BF16,
    "avx512 vnni": library.PLAIN | library.AVX512 | library.AVX512_VNNI,
    "all": None,
}
BOUNDS = {  # of the cosine, of the length and of a single value, about thrice what is seen
    "float32": (1e-10, 1e-6, 5e-6),
    "bfloat16": (2e-5, 5e-4, 0.015),
    "int8": (5e-4, 2e-3, 0.1),
}
GUARD = 64


def best():
    found, reason = library._find("")
    if found is None:
        pytest.skip(f"no native kernel here: {reason}")
    return found


@pytest.fixture(params=PATHS, scope="module")
def native(request):
    """A kernel of each path."""
    found, wanted = best(), PATHS[request.param]
    if wanted is not None and wanted & ~found._features:
        pytest.skip(f"this CPU has no {request.param}")
    return library.Kernel(found._library, found._features if wanted is None else wanted)


def reference(case):
    """The steps one by one in float64."""
    hh, hr, gates, hidden, cell = (
        None if a is None else a.astype(np.float64)
        for a in (case["weight_hh"], case["weight_hr"], case["gates"], case["hidden"], case["cell"])
    )
    outputs = np.empty((len(gates), hidden.shape[1]))
    start = 0
    with np.errstate(over="ignore"):
        for size in case["batch_sizes"]:
            rows = slice(start, start + size)
            i, f, g, o = np.split(gates[rows] + hidden[:size] @ hh.T, 4, axis=1)
            new = cell[:size] / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
            if case["cell_clip"] is not None:
                new = new.clip(-case["cell_clip"], case["cell_clip"])
            out = np.tanh(new) / (1 + np.exp(-o))
            if hr is not None:
                out = out @ hr.T
                if case["proj_clip"] is not None:
                    out = out.clip(-case["proj_clip"], case["proj_clip"])
            cell[:size], hidden[:size], outputs[rows] = new, out, out
            start += size
    return outputs, hidden, cell


def make(cells, width, sizes, *, projected=True, cell_clip=1.0, proj_clip=0.5, seed=0, spare=0):
    """A layer and its input; the clips bite, since cells and outputs are about 1."""
    random = np.random.default_rng(seed)

    def normal(*shape, scale=1.0):
        return (random.standard_normal(shape) * scale).astype(np.float32)

    width = width if projected else cells
    rows = (sizes[0] if sizes else 0) + spare
    return {
        "weight_hh": normal(4 * cells, width, scale=width**-0.5),
        "weight_hr": normal(width, cells, scale=2 * cells**-0.5) if projected else None,
        "gates": normal(sum(sizes), 4 * cells),
        "batch_sizes": sizes,
        "cell_clip": cell_clip,
        "proj_clip": proj_clip,
        "hidden": normal(rows, width, scale=0.5),
        "cell": normal(rows, cells),
    }


def guarded(array):
    """A copy between bytes that no one may touch, at an address that only a float divides."""
    around = np.full(array.size + 2 * GUARD + 1, 12345.0, np.float32)
    inside = around[GUARD + 1 : GUARD + 1 + array.size].reshape(array.shape)
    inside[...] = array
    return around, inside


def run(native, case, *, dtype="float32", ways=1):
    """Outputs, hidden and cell; checks that nothing else is written."""
    packed = native.pack(case["weight_hh"], case["weight_hr"], dtype=dtype)
    width = case["hidden"].shape[1]
    arounds, (out, hidden, cell) = zip(
        *map(guarded, (np.full((len(case["gates"]), width), np.nan), case["hidden"], case["cell"])), strict=True
    )
    before = case["gates"].copy()
    for way in range(ways):
        native.run(
            packed,
            case["gates"],
            batch_sizes=case["batch_sizes"],
            cell_clip=case["cell_clip"],
            proj_clip=case["proj_clip"],
            hidden=hidden,
            cell=cell,
            out=out,
            rows=None if ways == 1 else range(way, len(hidden), ways),
        )
    assert np.array_equal(case["gates"], before, equal_nan=True)
    for around in arounds:
        assert (around[: GUARD + 1] == 12345).all() and (around[-GUARD:] == 12345).all()
    return out, hidden, cell


clips = st.one_of(st.none(), st.sampled_from([0.25, 1.0, 3.0]))
cases = st.builds(
    make,
    st.integers(1, 70),
    st.integers(1, 150),
    st.lists(st.integers(0, 15), max_size=5).map(lambda sizes: sorted(sizes, reverse=True)),
    projected=st.booleans(),
    cell_clip=clips,
    proj_clip=clips,
    seed=st.integers(0, 2**32 - 1),
    spare=st.integers(0, 2),
)


@given(case=cases, ways=st.integers(1, 3))
def test_any_shape_agrees_with_a_loop_in_double_precision(native, case, ways):
    for found, expected in zip(run(native, case, ways=ways), reference(case), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


# Several chunks of cells; more rows than a cache likes; a layer that is fetched ahead by two, three and more tiles.
@pytest.mark.parametrize(
    ("cells", "width", "sizes"),
    [(600, 130, [9, 9, 4, 1]), (40, 24, [2000, 3]), (2100, 310, [8, 2]), (2100, 310, [15]), (2100, 310, [27])],
)
def test_large_shapes_agree_too(native, cells, width, sizes):
    case = make(cells, width, sizes)
    for found, expected in zip(run(native, case), reference(case), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", kernel.FORMATS)
@pytest.mark.parametrize(("cells", "width", "projected"), [(600, 130, True), (333, 63, True), (150, 150, False)])
@pytest.mark.parametrize("clip", [3.0, None])
def test_rounded_weights_point_the_same_way(native, dtype, cells, width, projected, clip):
    sizes = [*[11] * 12, *[5] * 6, 1, 1]
    case = make(cells, width, sizes, projected=projected, cell_clip=clip, proj_clip=clip)
    for found, expected in zip(run(native, case, dtype=dtype), reference(case), strict=True):
        turned, stretched, apart = BOUNDS[dtype]
        product = (found * expected).sum()
        assert product / np.sqrt((found.astype(np.float64) ** 2).sum() * (expected**2).sum()) > 1 - turned
        assert abs(product / (expected**2).sum() - 1) < stretched  # cutting where rounding is meant would shrink all
        assert np.abs(found - expected).max() < apart


@pytest.mark.parametrize("dtype", kernel.FORMATS)
def test_int8_of_weights_that_int8_can_hold_is_exact_but_for_activations(native, dtype):
    case = make(64, 64, [3, 3])
    case["weight_hh"] = np.round(case["weight_hh"] * 32).clip(-127, 127) / np.float32(32)
    case["weight_hh"][:, 0] = 127 / 32  # the largest of each row, hence a scale of 1 / 32
    case["hidden"] = np.zeros_like(case["hidden"])
    case["hidden"][:, 0] = 1  # one step of the recurrent product, of codes without rounding
    case["weight_hr"][...] = 0
    out, hidden, cell = run(native, case, dtype=dtype)
    np.testing.assert_allclose(cell, reference(case)[2], atol=2e-6)
    assert not out.any() and not hidden.any()


@pytest.mark.parametrize("dtype", kernel.FORMATS)
@pytest.mark.parametrize("projected", [True, False])
def test_a_row_does_not_depend_on_what_stands_beside_it(native, dtype, projected):
    case = make(100, 40, [14, 14, 9, 3], projected=projected)
    together = run(native, case, dtype=dtype)
    again = run(native, case, dtype=dtype)
    shared = run(native, case, dtype=dtype, ways=4)
    for one, two, three in zip(together, again, shared, strict=True):
        assert np.array_equal(one, two) and np.array_equal(one, three)
    starts = np.cumsum([0, *case["batch_sizes"]])[:-1]
    for row in (0, 5, 13):
        places = [start + row for start, size in zip(starts, case["batch_sizes"], strict=True) if size > row]
        alone = case | {
            "gates": case["gates"][places],
            "batch_sizes": [1] * len(places),
            "hidden": case["hidden"][row : row + 1],
            "cell": case["cell"][row : row + 1],
        }
        out, hidden, cell = run(native, alone, dtype=dtype)
        assert np.array_equal(out, together[0][places])
        assert np.array_equal(hidden[0], together[1][row]) and np.array_equal(cell[0], together[2][row])


@pytest.mark.parametrize("dtype", kernel.FORMATS)
def test_a_sequence_in_two_parts_ends_as_in_one(native, dtype):
    case = make(48, 24, [5] * 6)
    out, hidden, cell = run(native, case, dtype=dtype)
    first, first_hidden, first_cell = run(
        native, case | {"gates": case["gates"][:10], "batch_sizes": [5] * 2}, dtype=dtype
    )
    rest = {"gates": case["gates"][10:], "batch_sizes": [5] * 4, "hidden": first_hidden, "cell": first_cell}
    second, last_hidden, last_cell = run(native, case | rest, dtype=dtype)
    assert np.array_equal(np.concatenate([first, second]), out)
    assert np.array_equal(last_hidden, hidden) and np.array_equal(last_cell, cell)


@pytest.mark.parametrize("dtype", kernel.FORMATS)
@pytest.mark.parametrize("value", [np.inf, -np.inf, 3e38, -3e38, 1e5, 1e-42, -1e-42, 0.0])
def test_extreme_gates_saturate(native, dtype, value):
    case = make(20, 12, [7, 7], cell_clip=None, proj_clip=None)
    case["gates"][:7, ::3] = value
    for found, expected in zip(run(native, case, dtype=dtype), reference(case), strict=True):
        assert np.isfinite(found).all()
        np.testing.assert_allclose(found, expected, atol={"float32": 1e-5, "bfloat16": 0.05, "int8": 0.1}[dtype])


def test_extreme_cells_are_clipped_or_kept(native):
    case = make(20, 12, [7, 7])
    case["cell"][:, ::2] = 1e30
    case["cell"][:, 1] = 1e-42
    case["cell"][:, 2::4] = 1e6
    case["gates"][:, 20:40] = 100.0  # keeps the cells
    case["gates"][:, 22:40:4] = -100.0  # forgets them
    np.testing.assert_allclose(run(native, case)[0], reference(case)[0], atol=1e-5)
    case |= {"cell_clip": None}
    _, _, cell = run(native, case)
    np.testing.assert_allclose(cell, reference(case)[2], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_nan_shows_in_its_row_and_in_no_other(native, dtype):
    case = make(20, 12, [7, 7])
    clean = run(native, case, dtype=dtype)
    case["gates"] = case["gates"].copy()
    case["gates"][3, 5] = np.nan
    for found, expected in zip(run(native, case, dtype=dtype), clean, strict=True):
        others = np.delete(np.arange(len(found)), np.s_[3::7])
        assert np.isnan(found[3]).any() and np.array_equal(found[others], expected[others])


def test_two_threads_do_not_disturb_each_other(native):
    case = make(200, 64, [24] * 30)
    expected = run(native, case)
    packed = native.pack(case["weight_hh"], case["weight_hr"])
    out, hidden, cell = np.empty_like(expected[0]), case["hidden"].copy(), case["cell"].copy()
    clips = {"cell_clip": case["cell_clip"], "proj_clip": case["proj_clip"]}
    arrays = {"hidden": hidden, "cell": cell, "out": out}

    def work(rows):
        native.run(packed, case["gates"], batch_sizes=case["batch_sizes"], **clips, **arrays, rows=rows)

    threads = [threading.Thread(target=work, args=(range(way, 24, 2),)) for way in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for found, wanted in zip((out, hidden, cell), expected, strict=True):
        assert np.array_equal(found, wanted)


def test_arrays_that_a_pointer_would_misread_are_refused():
    native, case = best(), make(8, 4, [2, 1])
    packed = native.pack(case["weight_hh"], case["weight_hr"])
    good = {
        "gates": case["gates"],
        "batch_sizes": [2, 1],
        "hidden": case["hidden"],
        "cell": case["cell"],
        "out": np.empty((3, 4), np.float32),
    }
    bad = [
        {"gates": case["gates"].astype(np.float64)},
        {"gates": case["gates"][:, ::2]},
        {"batch_sizes": [1, 2]},
        {"batch_sizes": [2]},
        {"batch_sizes": [4, -1]},
        {"batch_sizes": [3]},
        {"hidden": case["hidden"][:1]},
        {"cell": np.zeros((8, 2), np.float32).T},
        {"out": np.empty((2, 4), np.float32)},
        {"rows": range(3)},
        {"rows": range(-1, 2)},
    ]
    for change in bad:
        arguments = good | change
        with pytest.raises(AssertionError):
            native.run(packed, arguments.pop("gates"), cell_clip=None, proj_clip=None, **arguments)
    for hh, hr in [
        (np.zeros((6, 2)), np.zeros((2, 1))),
        (np.zeros((8, 4)), None),
        (np.zeros((8, 4)), np.zeros((2, 4))),
    ]:
        with pytest.raises(AssertionError):
            native.pack(hh.astype(np.float32), None if hr is None else hr.astype(np.float32))


@pytest.mark.parametrize(
    ("path", "line"), [("plain", "plain C"), ("avx2", "AVX2"), ("avx512", "AVX-512"), ("1", ""), ("", "")]
)
def test_the_environment_chooses_a_path(monkeypatch, path, line):
    features = best()._features
    monkeypatch.setenv("ELMOKIT_KERNEL", path)
    if {"avx2": library.AVX2, "avx512": library.AVX512}.get(path, 0) & ~features:
        with pytest.raises(ConfigError, match="which this CPU cannot run; it can run plain"):
            kernel.available()
        return
    found = kernel.available()
    assert found is not None
    assert found.description == kernel.describe()
    assert found.description.startswith(f"native kernel, {line}")


def test_the_environment_turns_it_off(monkeypatch):
    monkeypatch.setenv("ELMOKIT_KERNEL", "0")
    assert kernel.available() is None
    assert kernel.describe() == "no native kernel: ELMOKIT_KERNEL is 0"


def test_another_word_in_the_environment_is_an_error(monkeypatch):
    monkeypatch.setenv("ELMOKIT_KERNEL", "sse9")
    with pytest.raises(ConfigError, match=r"'sse9'; expected 0, 1, plain, avx2, avx512"):
        kernel.available()


@pytest.mark.parametrize(
    ("features", "line"),
    [
        (library.PLAIN, "native kernel, plain C"),
        (library.PLAIN | library.AVX2, "native kernel, AVX2"),
        (library.PLAIN | library.AVX2 | library.AVX_VNNI, "native kernel, AVX2 (VNNI)"),
        (library.PLAIN | library.AVX2 | library.AVX512 | library.AVX_VNNI, "native kernel, AVX-512"),
        (ALL, "native kernel, AVX-512 (bf16, VNNI)"),
    ],
)
def test_a_line_says_what_is_in_use(features, line):
    assert library.Kernel(best()._library, features).description == line
