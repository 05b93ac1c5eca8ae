"""Prompts out of Parquet files and saved Hugging Face datasets, as the real libraries write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rolecall.batches import prompts_tables
from rolecall.batches.prompts import load_prompts
from rolecall.errors import ConfigError

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

ROWS: list[dict[str, Any]] = [
    {"id": "a", "prompt": "2 + 2?", "answer": "4", "metadata": {"level": 1}, "other": 1.5},
    {"id": "b", "prompt": "¿Qué?", "answer": None, "metadata": {"level": None}, "other": 2.5},
]


def write_table(path: Path, rows: list[dict[str, Any]]) -> Path:
    parquet.write_table(pa.Table.from_pylist(rows), path)
    return path


def save_dataset(folder: Path, rows: list[dict[str, Any]]) -> Path:
    pytest.importorskip("datasets")
    from datasets import Dataset

    Dataset.from_list(rows).save_to_disk(str(folder))
    return folder


def test_a_parquet_file_and_a_saved_dataset_give_the_same_prompts(tmp_path: Path) -> None:
    table = load_prompts(write_table(tmp_path / "p.parquet", ROWS))
    assert [(prompt.prompt_id, prompt.text, prompt.answer) for prompt in table] == [
        ("a", "2 + 2?", "4"),
        ("b", "¿Qué?", None),
    ]
    assert table[0].metadata == {"level": 1}
    assert load_prompts(save_dataset(tmp_path / "saved", ROWS)) == table


def test_a_folder_of_parquet_files_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    write_table(tmp_path / "part-1.parquet", [{"prompt": "second"}])
    write_table(tmp_path / "part-0.parquet", [{"prompt": "first"}])
    prompts = load_prompts(tmp_path)
    assert [(prompt.prompt_id, prompt.text) for prompt in prompts] == [
        ("row-0", "first"),
        ("row-1", "second"),
    ]


def test_columns_are_found_by_other_names_and_inside_others(tmp_path: Path) -> None:
    rows = [{"question": "?", "reward_model": {"ground_truth": 42, "style": "rule"}, "extra": {"split": "x"}}]
    columns = {"prompt": "question", "answer": "reward_model.ground_truth", "metadata": "extra"}
    for path in (write_table(tmp_path / "p.parquet", rows), save_dataset(tmp_path / "saved", rows)):
        (prompt,) = load_prompts(path, columns)
        assert (prompt.text, prompt.answer, prompt.metadata) == ("?", "42", {"split": "x"})


def test_a_saved_dataset_that_was_shuffled_or_selected_is_read_as_it_was_left(tmp_path: Path) -> None:
    """Such a one has indices beside its rows; who reads the rows alone gets others."""
    pytest.importorskip("datasets")
    from datasets import Dataset

    whole = Dataset.from_list([{"prompt": str(number)} for number in range(20)])
    whole.select([7, 3, 5]).save_to_disk(str(tmp_path / "saved"))
    assert [prompt.text for prompt in load_prompts(tmp_path / "saved")] == ["7", "3", "5"]


def test_wrong_rows_are_all_named(tmp_path: Path) -> None:
    path = write_table(tmp_path / "p.parquet", [{"id": 1, "prompt": "x"}, {"id": 1, "prompt": None}])
    with pytest.raises(ConfigError) as refused:
        load_prompts(path)
    assert [str(problem) for problem in refused.value.problems] == [f"{path}, row 1: prompt: is missing"]
    path = write_table(tmp_path / "q.parquet", [{"id": 1, "prompt": "x"}, {"id": 1, "prompt": "y"}])
    with pytest.raises(ConfigError, match='row 1: id: id "1" is already that of row 0'):
        load_prompts(path)
    path = write_table(tmp_path / "r.parquet", [{"prompt": [{"role": "user", "content": "x"}]}])
    with pytest.raises(ConfigError, match="row 0: prompt: must be text that is not empty"):
        load_prompts(path)


def test_what_is_no_table_is_refused_by_what_it_is(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    from datasets import Dataset, DatasetDict

    def refused(path: Path) -> str:
        with pytest.raises(ConfigError) as error:
            load_prompts(path)
        return str(error.value)

    one = Dataset.from_list([{"prompt": "x"}])
    DatasetDict(train=one, test=one).save_to_disk(str(tmp_path / "splits"))
    assert "name the folder of one: test, train" in refused(tmp_path / "splits")
    assert len(load_prompts(tmp_path / "splits" / "train")) == 1
    (tmp_path / "empty").mkdir()
    assert "neither a saved dataset" in refused(tmp_path / "empty")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and nothing")
    assert "can't be read" in refused(tmp_path / "broken.parquet")
    assert "can't be read" in refused(tmp_path / "gone.parquet")
    parquet.write_table(pa.table({"prompt": pa.array([], pa.string())}), tmp_path / "none.parquet")
    assert "holds no prompts" in refused(tmp_path / "none.parquet")


def test_a_library_that_is_not_there_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(_: str) -> None:
        return None

    monkeypatch.setattr(prompts_tables, "find_spec", nothing)
    with pytest.raises(ConfigError, match=r"pip install 'rolecall\[parquet\]'"):
        load_prompts(tmp_path / "p.parquet")
