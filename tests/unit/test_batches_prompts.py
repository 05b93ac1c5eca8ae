"""Prompt files: every problem with its line, and which prompts a batch takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rolecall.batches.prompts import load_prompts, pick_prompts
from rolecall.errors import ConfigError
from rolecall.ids import BatchId

EXAMPLES = Path(__file__).parents[2] / "examples" / "prompts"


def write(folder: Path, *lines: object) -> Path:
    path = folder / "prompts.jsonl"
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text("\n".join(texts), encoding="utf-8")
    return path


def problems(path: Path) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        load_prompts(path)
    return [str(problem).removeprefix(f"{path}") for problem in refused.value.problems]


def test_every_key_reaches_the_prompt(tmp_path: Path) -> None:
    full = {"id": "a", "prompt": "2 + 2?", "answer": "4", "data_source": "sums", "metadata": {"level": 1}}
    first, second = load_prompts(write(tmp_path, full, "", {"prompt": "¿Qué?"}))
    assert (first.prompt_id, first.text, first.answer) == ("a", "2 + 2?", "4")
    assert (first.data_source, first.metadata) == ("sums", {"level": 1})
    assert (second.prompt_id, second.text, second.answer, second.metadata) == ("line-3", "¿Qué?", None, {})


def test_all_problems_are_reported_with_their_lines(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"id": "a", "prompt": "fine"},
        "{not json",
        "[1]",
        {"anwser": "4", "prompt": "x"},
        {"id": 7, "prompt": " ", "answer": 4, "metadata": []},
        {"id": "a", "prompt": "again"},
        {},
        {"prompt": "x", "image_data": []},
    )
    found = problems(path)
    assert found[0].startswith(":2: is not JSON: ")
    assert found[1:] == [
        ":3: must be an object, found [1]",
        ':4: anwser: is unknown; did you mean "answer"? Allowed: id, prompt, answer, data_source, metadata, '
        "image_data, video_data, audio_data",
        ":5: id: must be text that is not empty, found 7",
        ":5: prompt: must be text that is not empty, found ' '",
        ':5: answer: must be text, found 4; write numbers as "42"',
        ":5: metadata: must be an object, found []",
        ':6: id: id "a" is already that of line 1',
        ":7: prompt: is missing",
        ":8: image_data: must be text (a URL, a path or base64) or a list of it, found []",
    ]


def test_what_a_prompt_shows_beside_its_text_reaches_it(tmp_path: Path) -> None:
    (prompt,) = load_prompts(
        write(tmp_path, {"prompt": "?", "image_data": ["data:a", "b.png"], "audio_data": "c.wav"})
    )
    assert prompt.media == {"image_data": ["data:a", "b.png"], "audio_data": "c.wav"}


def test_files_of_others_are_read_by_their_own_names(tmp_path: Path) -> None:
    path = write(
        tmp_path, {"question": "2 + 2?", "gold": {"value": "4"}, "more": 1}, {"question": "?", "gold": None}
    )
    columns = {"prompt": "question", "answer": "gold.value"}
    assert [(prompt.text, prompt.answer) for prompt in load_prompts(path, columns)] == [
        ("2 + 2?", "4"),
        ("?", None),
    ]
    for wrong, message in (
        ({"prompt": "question", "anwser": "gold"}, 'columns: "anwser" is no field of a prompt'),
        ({"answer": "gold"}, "columns: must say which one is the prompt"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_prompts(path, wrong)


def test_a_file_without_prompts_and_a_missing_one_are_refused(tmp_path: Path) -> None:
    assert problems(write(tmp_path, "")) == [": holds no prompts"]
    assert problems(tmp_path / "gone.jsonl")[0].startswith(": can't be read: ")


def test_batches_take_the_file_in_order_and_start_again_with_new_ids(tmp_path: Path) -> None:
    prompts = load_prompts(write(tmp_path, *({"id": name, "prompt": name} for name in "abc")))

    def ids(batch: int) -> list[str]:
        return [prompt.prompt_id for prompt in pick_prompts(prompts, BatchId(batch), 2)]

    assert [ids(batch) for batch in range(4)] == [["a", "b"], ["c", "a#1"], ["b#1", "c#1"], ["a#2", "b#2"]]
    assert [prompt.text for prompt in pick_prompts(prompts, BatchId(1), 2)] == ["c", "a"]


def test_a_batch_larger_than_the_file_has_distinct_groups(tmp_path: Path) -> None:
    prompts = load_prompts(write(tmp_path, {"id": "a", "prompt": "x"}))
    assert [p.prompt_id for p in pick_prompts(prompts, BatchId(0), 3)] == ["a", "a#1", "a#2"]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.jsonl")), ids=lambda path: path.name)
def test_the_examples_hold_enough_prompts_with_answers(path: Path) -> None:
    prompts = load_prompts(path)
    assert len(prompts) >= 48
    assert all(prompt.answer and prompt.data_source for prompt in prompts)
