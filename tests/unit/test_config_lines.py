"""The line of every key, held against the text itself."""

from __future__ import annotations

import json
import tomllib
from textwrap import dedent

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolecall.config.lines import KeyLines


def lines_of(text: str) -> KeyLines:
    return KeyLines.of(text, tomllib.loads(text))


def numbered(text: str) -> KeyLines:
    return lines_of(dedent(text).removeprefix("\n"))


def test_tables_keys_and_comments():
    lines = numbered("""
        # [job] in a comment
        top = 1

        [job]         # here
        name = "a"  # name = "b"

        [ roles . rollout ]
        devices = 1
    """)
    assert lines.line(("top",)) == 2
    assert lines.line(("job",)) == 4
    assert lines.line(("job", "name")) == 5
    assert lines.line(("roles",)) == 7
    assert lines.line(("roles", "rollout")) == 7
    assert lines.line(("roles", "rollout", "devices")) == 8


def test_a_tables_own_header_wins_over_an_earlier_child():
    lines = numbered("""
        [roles.judge.models.m]
        source = "x"

        [roles.judge]
        devices = 1
    """)
    assert lines.line(("roles",)) == 1
    assert lines.line(("roles", "judge")) == 4
    assert lines.line(("roles", "judge", "models", "m", "source")) == 2


def test_dotted_keys():
    lines = numbered("""
        job.name = "a"
        job . event_log = "b"
    """)
    assert lines.line(("job",)) == 1
    assert lines.line(("job", "name")) == 1
    assert lines.line(("job", "event_log")) == 2


def test_quoted_keys():
    lines = numbered(r"""
        [roles."my \"role\"".'it is']
        "a.b" = 1
        'c d' = 2
        "\u00e9" = 3
        "" = 4
    """)
    table = ("roles", 'my "role"', "it is")
    assert [lines.line((*table, key)) for key in ("a.b", "c d", "é", "")] == [2, 3, 4, 5]


def test_inline_tables_and_arrays():
    lines = numbered("""
        aliases = { a = "m", b.c = "[x]", d = {} }
        observers = [
            "one",   # ] not the end
            "two", { deep = [1, [2,
              3]] },
        ]
        after = 1979-05-27 07:32:00  # a date
        last = 1
    """)
    assert lines.line(("aliases", "b", "c")) == 1
    assert lines.line(("aliases", "d")) == 1
    assert lines.line(("observers", 0)) == 3
    assert lines.line(("observers", 1)) == 4
    assert lines.line(("observers", 2, "deep", 1, 0)) == 4
    assert lines.line(("observers", 2, "deep", 1, 1)) == 5
    assert (lines.line(("after",)), lines.line(("last",))) == (7, 8)


def test_arrays_of_tables():
    lines = numbered("""
        [[steps]]
        name = "a"
        [steps.options]
        x = 1
        [[steps.parts]]
        [[steps.parts]]
        p = 1

        [[steps]]
        name = "b"
    """)
    assert lines.line(("steps",)) == 1
    assert lines.line(("steps", 0, "options", "x")) == 4
    assert lines.line(("steps", 0, "parts", 1, "p")) == 7
    assert lines.line(("steps", 1)) == 9
    assert lines.line(("steps", 1, "name")) == 10


@pytest.mark.parametrize(
    "value",
    [
        '"""\n[not] \n a = """ # x',
        '"""a\\"""\n"""',
        '"""quotes at the end"""""',
        "'''\nb = 1\n'''",
        "'''one ' two '' '''''",
        r'"a \" # ] \\"',
        "'C:\\'",
        '""',
        "''",
        "[\n]",
        "[ # comment ]\n 1,\n]",
        "{}",
        "+1_000",
        "nan",
        "0x_bad".replace("_", ""),
        "1979-05-27T07:32:00Z",
    ],
)
def test_what_comes_after_a_value_keeps_its_line(value):
    text = f"before = 1\nkey = {value}\nmarker = 1\n"
    lines = lines_of(text)
    assert lines.line(("key",)) == 2
    assert lines.line(("marker",)) == text[: text.index("marker")].count("\n") + 1


def test_windows_line_ends_count_once():
    lines = lines_of('a = """\r\nx\r\n"""\r\nb = 1\r\n')
    assert lines.line(("b",)) == 4


def test_a_key_that_is_absent_has_no_line_but_its_table_has():
    lines = numbered("""
        [job]
        [placement]
    """)
    assert lines.line(("placement", "mode")) is None
    assert lines.nearest_line(("placement", "mode")) == 2
    assert lines.nearest_line(("sink", "name")) is None


def test_a_reading_that_disagrees_with_tomllib_gives_no_lines():
    text = "a = 1\nb = 2\n"
    assert lines_of(text).line(("a",)) == 1
    assert KeyLines.of(text, {"a": 1}).line(("a",)) is None
    assert KeyLines.of("a ! 1\n", {"a": 1}).line(("a",)) is None


def test_a_text_nested_deeper_than_can_be_read_gives_no_lines():
    depth = 100_000
    assert KeyLines.of(f"a = {'[' * depth}{']' * depth}", {"a": []}).line(("a",)) is None


# --- any text ---------------------------------------------------------------------------

KEYS = st.text(alphabet=st.sampled_from("ab.-_ \"'\\#=[]é\n"), min_size=0, max_size=4)
SCALARS = st.sampled_from(["§", '§ """', "§ '''", "§\n[x]\ny = 1", "§#", "§]", '§"', "§\\"])
TREES = st.dictionaries(
    KEYS,
    st.recursive(
        SCALARS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
        max_leaves=8,
    ),
    max_size=4,
)


class _Writer:
    """Writes a tree in one of the many ways TOML allows; every text value gets its own number."""

    def __init__(self, data: st.DataObject) -> None:
        self._draw = data.draw
        self._count = 0
        self.markers: dict[tuple, str] = {}

    def document(self, tree: dict) -> str:
        return self._table(tree, ())

    def _chance(self) -> bool:
        return self._draw(st.booleans())

    def _table(self, tree: dict, path: tuple) -> str:
        """Plain values first, then sub-tables with headers, as TOML wants them."""
        as_headers = {
            key: value
            for key, value in tree.items()
            if (isinstance(value, dict) or self._is_table_list(value)) and self._chance()
        }
        text = "".join(
            self._entry(key, value, (*path, key))
            + self._draw(st.sampled_from(["\n", " # [c] = 1\n", "\n\n"]))
            for key, value in tree.items()
            if key not in as_headers
        )
        for key, value in as_headers.items():
            header = ".".join(self._key(part) for part in (*path, key) if isinstance(part, str))
            if isinstance(value, dict):
                text += f"[{header}]\n{self._table(value, (*path, key))}"
            else:
                for index, item in enumerate(value):
                    text += f"[[ {header} ]]\n{self._table(item, (*path, key, index))}"
        return text

    def _is_table_list(self, value: object) -> bool:
        return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)

    def _entry(self, key: str, value: object, path: tuple) -> str:
        if isinstance(value, dict) and len(value) == 1 and self._chance():
            ((inner_key, inner),) = value.items()
            return f"{self._key(key)} . {self._entry(inner_key, inner, (*path, inner_key))}"
        return f"{self._key(key)} = {self._value(value, path)}"

    def _value(self, value: object, path: tuple) -> str:
        if isinstance(value, dict):
            items = (self._entry(key, item, (*path, key)) for key, item in value.items())
            return "{ " + ", ".join(items) + " }"
        if isinstance(value, list):
            gap = self._draw(st.sampled_from([" ", "\n", " # ,]\n"]))
            items = (self._value(item, (*path, index)) for index, item in enumerate(value))
            return "[" + gap + "".join(f"{item},{gap}" for item in items) + "]"
        return self._text(str(value), path)

    def _text(self, value: str, path: tuple) -> str:
        self._count += 1
        marker = f"<{self._count}>"
        self.markers[path] = marker
        marked = marker + value
        if "'''" not in marked and not marked.endswith("'") and self._chance():
            return f"'''{marked}'''"
        if '"""' not in marked and "\\" not in marked and not marked.endswith('"') and self._chance():
            return f'"""{marked}"""'
        return json.dumps(marked, ensure_ascii=False)

    def _key(self, key: str) -> str:
        if key and key.isascii() and key.replace("-", "").replace("_", "").isalnum() and self._chance():
            return key
        if "'" not in key and "\n" not in key and self._chance():
            return f"'{key}'"
        return json.dumps(key, ensure_ascii=False)


@settings(max_examples=60, deadline=None)  # a slow machine is no fault
@given(TREES, st.data())
def test_the_line_of_each_value_is_where_its_text_stands(tree, data):
    writer = _Writer(data)
    text = writer.document(tree)
    lines = lines_of(text)
    for path, marker in writer.markers.items():
        assert lines.line(path) == text[: text.index(marker)].count("\n") + 1, text
