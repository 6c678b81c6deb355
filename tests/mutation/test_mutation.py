"""Tests of the mutation tool: what it changes, what it leaves alone, and that it detects a kill."""

from __future__ import annotations

import importlib
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from tests.mutation import accepted, changed, copy, named, python, sql, targets, warm
from tests.mutation.__main__ import sampled
from tests.mutation.mutation import Edit, Mutation, mutations


@cache
def all_mutations() -> list[Mutation]:
    return [
        mutation
        for path in targets.files()
        for mutation in targets.mutations_of(path, (targets.ROOT / path).read_text())
    ]


def results(text: str, edits: list[Edit], kind: str | None = None) -> set[str]:
    """The lines that the mutations of a text produce."""
    found = mutations("x", text, edits)
    return {one.after for one in found if kind in (None, one.kind)}


def of_python(text: str, kind: str | None = None) -> set[str]:
    return {
        one.after
        for one in mutations("x", text, python.edits(text))
        if kind in (None, one.kind) and python.compiles(text, one.apply(text))
    }


def of_sql(statement: str, kind: str | None = None) -> set[str]:
    text = f"-- name: one\n{statement}\n"
    return results(text, list(sql.edits(text, true="true")), kind)


def of_function(body: str, kind: str | None = None) -> set[str]:
    text = f"-- version: 1\nCREATE FUNCTION tenure.f() LANGUAGE plpgsql AS $$\n{body}\n$$;\n"
    return results(text, list(sql.edits(text, true="true")), kind)


@pytest.mark.parametrize(
    ("before", "kind", "after"),
    [
        ("x = a < b", "comparison", {"x = a <= b", "x = a >= b"}),
        ("x = a is not b", "comparison", {"x = a is b"}),
        ("x = a not in b", "comparison", {"x = a in b"}),
        ("x = a and b", "and/or", {"x = a or b"}),
        ("x = a or b", "drop operand", {"x = False or b", "x = a or False"}),
        ("x = not a", "drop not", {"x = (a)"}),
        ("if a: b()", "drop branch", {"if False: b()"}),
        ("if a: b()", "drop condition", {"if True: b()"}),
        ("x = [a for a in b if a]", "drop condition", {"x = [a for a in b if True]"}),
        ("a.b = 1", "drop statement", {"pass"}),
        ("f(a)", "drop statement", {"pass"}),
        ("x = 900", "constant", {"x = 901", "x = 60"}),
        ("x = a + b", "arithmetic", {"x = a - b"}),
        ("x = min(a, b)", "min/max", {"x = max(a, b)"}),
        ("x = sorted(a)", "order", {"x = sorted(a, reverse=True)"}),
        ("x = max(a, key=b)", "order", {"x = max(a, key=None)"}),
        ("lambda a: (a.b, a.c)", "drop part of key", {"lambda a: (a.c,)", "lambda a: (a.b,)"}),
        ("x = lambda a: (a.b, a.c)", "order", {"x = lambda a: (a.c, a.b)"}),
        ("with self.lock: f()", "drop lock", {"with __import__('contextlib').nullcontext(): f()"}),
        ("x = tx.tr.get(a)", "drop lock", {"x = tx.tr.snapshot.get(a)"}),
        ("def f() -> int: return a", "return value", {"def f() -> int: return 0"}),
        ("def f() -> A | None: return a", "return value", {"def f() -> A | None: return None"}),
        ("def f() -> dict[A, B]: return a", "return value", {"def f() -> dict[A, B]: return {}"}),
        ("def f() -> tuple[A, B]: return a", "return value", set()),
        ("x = a[:b]", "slice", {"x = a[:]", "x = a[:(b) - 1]"}),
        ("x = a[1:]", "slice", {"x = a[:]"}),
        ("x = a[1]", "slice", set()),
        ("with suppress(A): f()", "drop guard",
         {"with __import__('contextlib').nullcontext(): f()"}),
    ],
)  # fmt: skip
def test_a_decision_in_python_is_changed(before: str, kind: str, after: set[str]) -> None:
    assert of_python(before, kind) == after


def test_a_function_that_returns_nothing_returns_early() -> None:
    before = "def f() -> None:\n    a()\n    b()\n    c()\n"
    assert of_python(before, "return early") == {"return; b()"}


def test_an_error_is_no_longer_caught() -> None:
    before = "try:\n    a()\nexcept B as error:\n    c()\n"
    assert of_python(before, "drop guard") == {"except () as error:"}


@pytest.mark.parametrize(
    "text",
    [
        '"""A text."""',
        "x: dict[int, Literal[1]]",
        'def __repr__(self) -> str:\n    return "1" if self.a > 1 else ""',
        '_log.warning("seconds: %s", 1 + 2)',
        "assert a > 1",
        "x = zip(a, b, strict=True)",
        "@cache(1)\ndef f(a: Literal[1]) -> None: ...",
    ],
)
def test_what_decides_nothing_is_left_alone(text: str) -> None:
    assert of_python(text) == set()


def test_an_error_may_be_dropped_but_its_text_is_left_alone() -> None:
    assert of_python('raise Busy(f"{a + 1} wait", 1)') == {"pass"}


def test_settings_that_only_cost_time_are_left_alone() -> None:
    for text in ("PAUSE = 5", "PAUSE, OTHER = 5, 6"):
        assert python.edits(text, frozenset({"PAUSE"})) == []


@pytest.mark.parametrize(
    ("before", "kind", "after"),
    [
        ("SELECT a FROM t WHERE b < 1 AND c = 2;", "comparison", {
            "SELECT a FROM t WHERE b <= 1 AND c = 2;",
            "SELECT a FROM t WHERE b >= 1 AND c = 2;",
            "SELECT a FROM t WHERE b < 1 AND c <> 2;",
        }),
        ("SELECT a FROM t WHERE b < 1 AND c = 2;", "drop condition", {
            "SELECT a FROM t WHERE true AND c = 2;",
            "SELECT a FROM t WHERE b < 1 AND true;",
        }),
        ("SELECT a FROM t WHERE b OR c;", "and/or", {"SELECT a FROM t WHERE b AND c;"}),
        ("SELECT a FROM t WHERE b OR c;", "drop operand", {"SELECT a FROM t WHERE false OR c;"}),
        ("SELECT a FROM t WHERE b AND c;", "drop operand", set()),  # see "drop condition"
        ("SELECT a FROM t WHERE (f(b) OR c);", "drop operand", {
            "SELECT a FROM t WHERE (false OR c);",
        }),
        ("SELECT (b AND c), (b BETWEEN 1 AND 2), (b);", "drop operand", {
            "SELECT (true AND c), (b BETWEEN 1 AND 2), (b);",
        }),
        ("SELECT a FROM t WHERE b BETWEEN 1 AND 2;", "and/or", set()),
        ("SELECT a FROM t WHERE f(b);", "negate", {"SELECT a FROM t WHERE NOT (f(b));"}),
        ("UPDATE t SET a = 1 WHERE b = 2;", "comparison", {"UPDATE t SET a = 1 WHERE b <> 2;"}),
        ("SELECT a FROM t ORDER BY b, c DESC;", "order", {
            "SELECT a FROM t ORDER BY b DESC, c DESC;", "SELECT a FROM t ORDER BY b, c ;",
        }),
        ("SELECT a FROM t ORDER BY b, c DESC;", "drop part of key", {
            "SELECT a FROM t ORDER BY c DESC;", "SELECT a FROM t ORDER BY b;",
        }),
        ("SELECT a FROM t LIMIT %s;", "limit", {"SELECT a FROM t LIMIT %s + 1;"}),
        ("SELECT a FROM t FOR UPDATE SKIP LOCKED;", "drop lock", {
            "SELECT a FROM t ;", "SELECT a FROM t FOR UPDATE ;",
        }),
        ("SELECT a FROM t FOR NO KEY UPDATE;", "drop lock", {"SELECT a FROM t ;"}),
        ("SELECT EXISTS (SELECT);", "negate", {"SELECT NOT EXISTS (SELECT);"}),
        ("SELECT NOT EXISTS (SELECT);", "drop not", {"SELECT EXISTS (SELECT);"}),
        ("SELECT coalesce(a, b);", "default", {"SELECT (a);", "SELECT (b);"}),
        ("SELECT a + 1;", "arithmetic", {"SELECT a - 1;"}),
        ("SELECT a - 1;", "constant", {"SELECT a - 2;"}),
        ("SELECT a IS NOT NULL;", "negate", {"SELECT a IS NULL;"}),
    ],
)  # fmt: skip
def test_a_decision_in_sql_is_changed(before: str, kind: str, after: set[str]) -> None:
    squeezed = {" ".join(one.split()) for one in of_sql(before, kind)}
    assert squeezed == {" ".join(one.split()) for one in after}


def test_a_statement_of_a_function_is_dropped() -> None:
    assert of_function("BEGIN\nPERFORM f();\nEND", "drop statement") == {"NULL;"}
    assert of_function("BEGIN\na := 1;\nEND", "drop statement") == {"NULL;"}


def test_a_condition_of_a_function_is_dropped() -> None:
    found = of_function("BEGIN\nIF a(b) THEN\nRETURN;\nEND IF;\nEND", "drop condition")
    assert found == {"IF true THEN"}


def test_functions_of_one_name_with_other_parameters_are_all_changed() -> None:
    one = "CREATE FUNCTION tenure.f({}) LANGUAGE plpgsql AS $$\nBEGIN\nPERFORM {}();\nEND $$;\n"
    each = (("a int", "old"), ("a int, b int", "other"), ("a int", "new"))
    text = "".join(one.format(*some) for some in each)
    found = [text[one.start : one.end] for one in sql.edits(text, true="true")]
    assert sorted(found) == ["PERFORM new()", "PERFORM other()"]


def test_columns_and_comments_are_left_alone() -> None:
    text = "-- version: 1\nCREATE TABLE t (a INTEGER DEFAULT 0);\n-- a < 1 AND b\n"
    assert list(sql.edits(text, true="true")) == []


def test_equal_lines_are_told_apart() -> None:
    text = "def f():\n    a(1)\n    a(1)\n"
    found = [one for one in mutations("x", text, python.edits(text)) if one.kind == "constant"]
    assert [one.before for one in found] == ["a(1)", "a(1)"]
    assert found[0].id != found[1].id


def test_each_function_is_changed_once_before_any_is_changed_twice() -> None:
    large = "def large(a):\n" + "    a.b += 1\n" * 50
    text = large + "".join(f"def f{n}(a):\n    a.b += 1\n" for n in range(5))
    every = mutations("x", text, python.edits(text))
    first = {one.function for one in sampled(every, {})[:6]}
    assert first == {"large", *(f"f{n}" for n in range(5))}
    assert sorted(one.id for one in sampled(every, {})) == sorted(one.id for one in every)


def test_lines_that_have_changed_come_first() -> None:
    text = "".join(f"def f{n}(a):\n    a.b += 1\n" for n in range(9))
    every = mutations("x", text, python.edits(text))
    new = changed.lines_of("--- a/x\n+++ b/x\n@@ -3,2 +4 @@ a\n+\n@@ -9,0 +10,3 @@\n+\n+\n+\n")
    assert new == {"x": {4, 10, 11, 12}}
    order = [one.function for one in sampled(every, new)]
    assert set(order[:3]) == {"f1", "f4", "f5"}
    old = order[sum(one.line in new["x"] for one in every) :]
    assert set(old) == {f"f{n}" for n in (0, 2, 3, 6, 7, 8)}


def test_every_named_mutation_applies() -> None:
    for one in named.NAMED:
        text = (targets.ROOT / one.path).read_text()
        changed = named.mutation(one, text).apply(text)
        assert changed != text
        assert one.path.endswith(".sql") or python.compiles(text, changed)


def test_every_named_mutation_is_first_shown_to_the_test_made_for_it() -> None:
    for one in named.NAMED:
        path, _, test = one.test.partition("::")
        assert f"def {test}(" in (targets.ROOT / path).read_text()
        text = (targets.ROOT / one.path).read_text()
        assert targets.selections(named.mutation(one, text))[0].arguments == (one.test,)


def test_a_named_mutation_that_no_longer_applies_says_so() -> None:
    gone = named.Named("x", "src/tenure/model/ops.py", "", "no such text", "", "")
    with pytest.raises(named.NoLongerApplies, match="update tests/mutation/named"):
        named.mutation(gone, (targets.ROOT / gone.path).read_text())


def test_every_accepted_change_is_a_mutation_of_one_function_and_has_a_reason() -> None:
    texts = {path: (targets.ROOT / path).read_text() for path in targets.files()}
    of_name: dict[str, list[Mutation]] = defaultdict(list)
    for mutation in all_mutations():
        of_name[accepted.place(mutation).rpartition(".")[2]].append(mutation)
    for one in accepted.read():
        mine = [it for it in of_name[one.function.rpartition(".")[2]] if one.is_of(it)]
        assert len({accepted.place(it) for it in mine}) == 1, one
        for change in one.changes:
            text = texts[mine[0].path]
            assert any(accepted.change_covers(change, it, text) for it in mine), (one, change)
        assert len(one.reason) > 20, one


def covered(change: str, text: str) -> list[str]:
    """The results of the mutations of a text that an accepted change covers."""
    found = mutations("a/b.py", text, python.edits(text))
    one = accepted.Accepted("b.f", (change,), "for a test")
    return [mutation.after for mutation in found if one.covers(mutation, text)]


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    if held > 1:\n        a()\n",
        "def f():\n    b()\n    while held >1 and c:  # now\n        a()\n",
        "def f():\n    a(\n        held\n        > 1\n    )\n",
    ],
)
def test_an_accepted_change_stays_accepted_when_the_code_around_it_changes(text: str) -> None:
    assert len(covered("comparison: held > 1", text)) == 2
    assert len(covered("comparison: held > 1 ==> held >= 1", text)) == 1
    assert len(covered("constant: held > 1", text)) == 1


def test_other_changes_are_not_accepted_with_it() -> None:
    text = "def f():\n    if held > 1 and b < 2:\n        return upheld > 1\n"
    assert covered("comparison: b < 2 ==> b <= 2", text) == ["if held > 1 and b <= 2:"]
    assert covered("comparison: held > 1", "def g():\n    a = held > 1\n") == []
    assert {one.partition(" ")[0] for one in covered("any: held > 1", text)} == {"if"}


def test_every_target_has_tests_that_exist() -> None:
    for one in {mutation.path: mutation for mutation in all_mutations()}.values():
        for selection in targets.selections(one):
            for argument in selection.arguments:
                exists = (targets.ROOT / argument).exists()
                assert exists or not argument.startswith("tests/"), argument


def test_a_copy_has_the_docs_that_tests_compare_the_code_with() -> None:
    """Without them such a test fails on every mutation, and would count as noticing it."""
    one = copy.Copy(prepared=False)
    try:
        assert (
            one.fail_unchanged(
                [
                    "tests/engines/foundationdb/test_costs.py::test_the_table_of_costs_is_the_one_of_the_docs"
                ]
            )
            == []
        )
    finally:
        one.close()


def test_a_mutation_is_run_and_noticed_and_leaves_no_trace() -> None:
    path = "src/tenure/model/retry.py"
    text = (targets.ROOT / path).read_text()
    tests = [targets.Selection(("tests/unit/test_retry.py", "-k", "default or grow"))]
    outcomes = []
    unnoticed = []
    one = copy.Copy(prepared=False)
    try:
        for new in ("DAY_MS = 0", "DAY_MS = 86_400_000 + 0"):
            change = named.Named("x", path, "", "DAY_MS = 86_400_000", new, "")
            mutation = named.mutation(change, text)
            tried = one.try_out(mutation, tests, lambda which, _: unnoticed.append(which))
            outcomes.append(tried.what)
            assert (one.root / path).read_text() == text
    finally:
        one.close()
    assert outcomes == ["killed", "survived"]
    assert unnoticed == tests
    assert (targets.ROOT / path).read_text() == text
    assert not one.root.exists()


def test_the_functions_that_differ_are_known() -> None:
    before = "def one():\n    return 1\n\n\nclass A:\n    def two(self):\n        return 2\n"
    assert warm.changed(before, before) == []
    assert warm.changed(before, before.replace("return 1", "return 3")) == ["one"]
    assert warm.changed(before, before.replace("return 2", "return 3")) == ["A.two"]


@pytest.mark.parametrize(
    "after",
    [
        "X = 2\ndef one(n=X):\n    return lambda: n\n",
        "X = 1\ndef one(n=1):\n    return lambda: n\n",
        "X = 1\ndef two(n=X):\n    return lambda: n\n",
    ],
)
def test_a_change_outside_of_functions_is_known(after: str) -> None:
    before = "X = 1\ndef one(n=X):\n    return lambda: n\n"
    assert warm.changed(before, after) is None


def test_functions_with_one_name_are_not_told_apart() -> None:
    before = "one = lambda: 1\ntwo = lambda: 2\n"
    assert warm.changed(before, before.replace(": 2", ": 3")) is None


def test_a_function_is_changed_wherever_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "warmed.py"
    before = "def one():\n    return 1\n\n\nclass A:\n    def two(self):\n        return 2\n"
    file.write_text(before)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("warmed")
    one, a = module.one, module.A()
    file.write_text(before.replace("return 1", "return 3").replace("return 2", "return 4"))
    assert warm.swap(file, ["one", "A.two"], warm.functions())
    assert (one(), a.two()) == (3, 4)
    del module.one, one
    assert not warm.swap(file, ["one"], warm.functions())  # nothing is left that could be changed
