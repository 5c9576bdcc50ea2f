"""The error tree and optional packages."""

import pytest

from elmokit import errors


def test_every_error_for_users_is_an_elmokit_error():
    found = [v for v in vars(errors).values() if isinstance(v, type) and issubclass(v, Exception)]
    assert len(found) > 5
    assert all(issubclass(error, errors.ElmokitError) for error in found)


def test_a_missing_package_names_its_install_line():
    with pytest.raises(errors.MissingExtraError, match=r"pip install 'elmokit\[parquet\]'"):
        errors.require("no_such_package.inside", extra="parquet")


def test_a_package_that_is_there_and_broken_keeps_its_own_message(tmp_path, monkeypatch):
    (tmp_path / "broken_package.py").write_text("import missing_inside\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="missing_inside"):
        errors.require("broken_package", extra="parquet")
