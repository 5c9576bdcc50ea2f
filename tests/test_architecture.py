"""The house plan of docs/design.md, enforced: the door, who may import what, sizes."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

import elmokit

ROOT = Path(__file__).parents[1]
PACKAGE = Path(elmokit.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
DOOR = {
    *("load", "available_models", "Embedder", "BiLM", "BiLMConfig", "build_bilm", "ElmoModule", "ScalarMix", "Elmo"),
    *("batch_to_ids", "ElmoEmbedder", "load_bilm", "save_bilm", "ElmokitError", "__version__"),
}
# Optional packages and the files that may import them, as a path or the beginning of one.
OPTIONAL = {
    "spacy": ("text/tokens.py",),
    "jieba": ("text/tokens.py",),
    "pyarrow": ("embed/writers/parquet.py", "train/sources.py"),
    "lightning": ("train/", "cli/train.py", "cli/finetune.py"),
    "zstandard": ("text/",),
    "huggingface_hub": ("weights/hub.py",),
}
LONGEST_FILE, LONGEST_FUNCTION = 400, 80


def named(path):
    return path.relative_to(PACKAGE).as_posix()


def imports(tree):
    """The module of every import, `require(...)` included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "require":
            assert isinstance(node.args[0], ast.Constant)
            yield node.args[0].value


def test_the_door_is_guarded():
    assert set(elmokit.__all__) == DOOR
    for name in DOOR:
        assert getattr(elmokit, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = elmokit.Nonsense


@pytest.mark.parametrize("line", ["import elmokit", "from elmokit.cli import main", "import elmokit.text.tokens"])
def test_importing_loads_nothing_heavy(line):
    heavy = "{'torch', 'h5py', 'spacy', 'jieba', 'pyarrow', 'lightning', 'huggingface_hub'}"
    code = f"import sys; {line}; print(sorted({heavy} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.skipif(not (ROOT / "pyproject.toml").is_file(), reason="needs the source tree")
def test_imports_point_upwards_only():
    tool = Path(sys.executable).with_name("lint-imports")
    found = subprocess.run([tool, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr


def test_no_module_imports_itself_by_way_of_others():
    graph = grimp.build_graph("elmokit", exclude_type_checking_imports=True, cache_dir=None)
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert "elmokit.model.lstm" in imported["elmokit.model.build"]
    graphlib.TopologicalSorter(imported).prepare()  # raises CycleError


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_a_module_is_documented_and_of_a_readable_size(path):
    text = path.read_text("utf-8")
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "no docstring"
    assert text.count("\n") <= LONGEST_FILE
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            assert (node.end_lineno or 0) - node.lineno < LONGEST_FUNCTION, node.name
    assert path.stem not in {"utils", "helpers", "common", "misc"}


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_optional_packages_are_imported_in_their_own_files(path):
    for module in imports(ast.parse(path.read_text("utf-8"))):
        allowed = OPTIONAL.get(module.split(".")[0])
        assert allowed is None or named(path).startswith(allowed), f"{module} in {named(path)}"
