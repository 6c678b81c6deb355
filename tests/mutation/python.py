"""Mutations of Python code, each of which changes one decision."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from tests.mutation.mutation import Edit

_COMPARE = re.compile(r"(?<!\w)(not\s+in|is\s+not|in|is)(?!\w)|<=|>=|==|!=|<|>")
# The bound is moved, and the result is negated.
_OTHER_COMPARE = {
    "<": ("<=", ">="),
    "<=": ("<", ">"),
    ">": (">=", "<="),
    ">=": (">", "<"),
    "==": ("!=",),
    "!=": ("==",),
    "in": ("not in",),
    "not in": ("in",),
    "is": ("is not",),
    "is not": ("is",),
}
_OTHER_OPERATOR = {"+": "-", "-": "+", "*": "//", "//": "*", "/": "*", "&": "|", "|": "&"}
_OTHER_CALL = {"min": "max", "max": "min", "any": "all", "all": "any"}
_LOGS = {"log", "_log", "logger", "logging", "warnings", "warn"}
_TEXTS = {"__repr__", "__str__", "__rich__"}
# Arguments that only affect error checking, class creation and thread names.
_HARMLESS_KEYWORDS = {"strict", "frozen", "kw_only", "forbid_unknown_fields", "name", "daemon"}
_FACTOR = 15


def edits(text: str, settings: frozenset[str] = frozenset()) -> list[Edit]:
    """All edits of a module. `settings` are names at its top level whose values affect only speed.
    A few of the edits may not compile: see `compiles`."""
    finder = _Finder(text, settings)
    finder.visit(ast.parse(text))
    return finder.found


def compiles(before: str, after: str) -> bool:
    """Whether an edit compiles, and changes the program."""
    try:
        return ast.dump(ast.parse(after)) != ast.dump(ast.parse(before))
    except SyntaxError:
        return False


def _names(node: ast.AST) -> set[str]:
    found = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return found | {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}


def _is_log(node: ast.AST) -> bool:
    while isinstance(node, ast.Call | ast.Attribute):
        node = node.func if isinstance(node, ast.Call) else node.value
        if isinstance(node, ast.Name | ast.Attribute):
            name = node.id if isinstance(node, ast.Name) else node.attr
            if name in _LOGS:
                return True
    return False


class _Finder(ast.NodeVisitor):
    """Walks a module and collects edits."""

    def __init__(self, text: str, settings: frozenset[str]) -> None:
        self.text = text
        self.found: list[Edit] = []
        self._settings = settings
        self._scope: list[str] = []
        self._lines = text.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    # Places in the text --------------------------------------------------------------------------

    def _at(self, line: int, column: int) -> int:
        """The index of a position that Python counts in bytes of UTF-8."""
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        end = self._at(node.end_lineno, node.end_col_offset)
        return self._at(node.lineno, node.col_offset), end

    def _of(self, node: ast.expr | ast.stmt) -> str:
        start, end = self._span(node)
        return self.text[start:end]

    def _note(self, start: int, end: int, new: str, kind: str) -> None:
        self.found.append(Edit(start, end, new, kind, ".".join(self._scope)))

    def _replace(self, node: ast.expr | ast.stmt, new: str, kind: str) -> None:
        self._note(*self._span(node), new, kind)

    # Definitions ---------------------------------------------------------------------------------

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._scope.append(node.name)
        self._block(node.body)
        self._scope.pop()

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name in _TEXTS:
            return
        self._scope.append(node.name)
        for default in [*node.args.defaults, *node.args.kw_defaults]:
            if default is not None:
                self.visit(default)
        body = node.body
        if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            body = body[1:]
        self._block(body)
        returns = "" if node.returns is None else self._of(node.returns)
        if returns == "None" and len(body) > 2:
            start, _ = self._span(body[1])
            self._note(start, start, "return; ", "return early")
        for result in _results(node.body):
            for value in _other_results(returns):
                self._replace(result, value, "return value")
        self._scope.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = _function

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if isinstance(node.target, ast.Name) and node.target.id in self._settings:
            return
        if node.value is not None:
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        names = {one.id for target in node.targets for one in _named(target)}
        if not self._scope and (names & self._settings or "__all__" in names):
            return
        if "__slots__" not in names:
            self.visit(node.value)
        in_init = self._scope[-1:] == ["__init__"]
        if isinstance(node.targets[0], ast.Attribute | ast.Subscript) and not in_init:
            self._replace(node, "pass", "drop statement")

    def visit_arg(self, node: ast.arg) -> None:
        """Skip annotations, which decide nothing."""

    # Statements ----------------------------------------------------------------------------------

    def _block(self, body: Sequence[ast.stmt]) -> None:
        for one in body:
            self.visit(one)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant) or _is_log(node.value):
            return
        if not isinstance(node.value, ast.Yield | ast.YieldFrom):
            self._replace(node, "pass", "drop statement")
        self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._replace(node, "pass", "drop statement")
        between = self._span(node.target)[1], self._span(node.value)[0]
        text = self.text[between[0] : between[1]]
        for old, new in (("+=", "-="), ("-=", "+=")):
            if old in text:
                self._note(*between, text.replace(old, new), "arithmetic")
        self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._replace(node, "pass", "drop statement")

    def visit_Delete(self, node: ast.Delete) -> None:
        self._replace(node, "pass", "drop statement")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._replace(node, "pass", "drop statement")

    def visit_Break(self, node: ast.Break) -> None:
        self._replace(node, "pass", "drop statement")

    def visit_Assert(self, node: ast.Assert) -> None:
        """Skip asserts, which are for the type checker."""

    def visit_If(self, node: ast.If) -> None:
        if _names(node.test) & {"TYPE_CHECKING"}:
            return
        self._replace(node.test, "False", "drop branch")
        self._replace(node.test, "True", "drop condition")
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._replace(node, f"({self._of(node.body)})", "drop condition")
        self._replace(node, f"({self._of(node.orelse)})", "drop branch")
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        if not isinstance(node.test, ast.Constant):
            self._replace(node.test, "False", "drop branch")
            self.visit(node.test)
        self._block([*node.body, *node.orelse])

    def _with(self, node: ast.With | ast.AsyncWith) -> None:
        for item in node.items:
            if item.optional_vars is None:
                guard = _names(item.context_expr) & {"suppress"}
                new = "__import__('contextlib').nullcontext()"
                self._replace(item.context_expr, new, "drop guard" if guard else "drop lock")
        self.generic_visit(node)

    visit_With = visit_AsyncWith = _with

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.type is not None:
            self._replace(node.type, "()", "drop guard")
        self._block(node.body)

    # Expressions ---------------------------------------------------------------------------------

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, right in zip([node.left, *node.comparators], node.comparators, strict=False):
            start, end = self._span(left)[1], self._span(right)[0]
            match = _COMPARE.search(self.text, start, end)
            if match is not None:
                for new in _OTHER_COMPARE[" ".join(match.group().split())]:
                    self._note(*match.span(), new, "comparison")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            start, end = self._span(left)[1], self._span(right)[0]
            match = re.compile(rf"\b{old}\b").search(self.text, start, end)
            if match is not None:
                self._note(*match.span(), new, "and/or")
        for value in node.values:
            self._replace(value, "True" if old == "and" else "False", "drop operand")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._replace(node, f"({self._of(node.operand)})", "drop not")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        start, end = self._span(node.left)[1], self._span(node.right)[0]
        match = re.compile(r"//|\*\*|<<|>>|[-+*/&|%]").search(self.text, start, end)
        if match is not None and match.group() in _OTHER_OPERATOR:
            self._note(*match.span(), _OTHER_OPERATOR[match.group()], "arithmetic")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if _is_log(node):
            return
        if isinstance(node.func, ast.Name) and node.func.id in _OTHER_CALL:
            self._replace(node.func, _OTHER_CALL[node.func.id], "min/max")
        self._order_of(node)
        self._isolation_of(node)
        self.visit(node.func)
        for argument in node.args:
            self.visit(argument)
        for keyword in node.keywords:
            if keyword.arg not in _HARMLESS_KEYWORDS:
                self.visit(keyword.value)

    def _order_of(self, node: ast.Call) -> None:
        """Sort keys: reversed, removed, with a part removed, with parts swapped."""
        func = node.func
        name = func.id if isinstance(func, ast.Name) else getattr(func, "attr", "")
        if name not in ("sorted", "sort", "min", "max", "groupby", "merge"):
            return
        if name in ("sorted", "sort"):
            _, end = self._span(node)
            comma = ", " if node.args or node.keywords else ""
            self._note(end - 1, end - 1, f"{comma}reverse=True", "order")
        for keyword in node.keywords:
            if keyword.arg == "key":
                self._replace(keyword.value, "None", "order")

    def visit_Lambda(self, node: ast.Lambda) -> None:
        if isinstance(node.body, ast.Tuple):
            self._parts_of(node.body)
        self.visit(node.body)

    def _parts_of(self, key: ast.Tuple) -> None:
        parts = [self._of(one) for one in key.elts]
        for n in range(len(parts)):
            rest = parts[:n] + parts[n + 1 :]
            self._replace(key, f"({', '.join(rest)},)", "drop part of key")
        if len(parts) > 1:
            self._replace(key, f"({', '.join([parts[1], parts[0], *parts[2:]])})", "order")

    def _isolation_of(self, node: ast.Call) -> None:
        """Make a read of FoundationDB conflict with other writes, or no longer conflict."""
        func = node.func
        if not isinstance(func, ast.Attribute) or func.attr not in ("get", "get_range"):
            return
        owner = func.value
        if isinstance(owner, ast.Attribute) and owner.attr == "tr":
            self._replace(owner, f"{self._of(owner)}.snapshot", "drop lock")

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._replace(test, "True", "drop condition")
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self.visit(node.value)
        if isinstance(node.slice, ast.Slice):
            self._bounds_of(node.slice)
        if not isinstance(node.slice, ast.Constant):
            self.visit(node.slice)

    def _bounds_of(self, node: ast.Slice) -> None:
        """Leave out a bound, and let a part end one earlier."""
        for bound in (node.lower, node.upper):
            if bound is not None:
                self._replace(bound, "", "slice")
        if node.upper is not None:
            self._replace(node.upper, f"({self._of(node.upper)}) - 1", "slice")

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Skip f-strings."""

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self._replace(node, str(not value), "constant")
        elif isinstance(value, int):
            self._replace(node, str(value + 1), "constant")
            if value >= 4 * _FACTOR:
                self._replace(node, str(value // _FACTOR), "constant")
        elif isinstance(value, float):
            self._replace(node, str(value * _FACTOR), "constant")


def _named(target: ast.expr) -> Sequence[ast.Name]:
    """The names that an assignment gives a value, one or several at once."""
    several = target.elts if isinstance(target, ast.Tuple) else [target]
    return [one for one in several if isinstance(one, ast.Name)]


def _results(body: Sequence[ast.AST]) -> Iterator[ast.expr]:
    """The values that a function returns, without those of functions defined in it."""
    for one in body:
        if isinstance(one, ast.Return) and one.value is not None:
            yield one.value
        elif not isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _results(list(ast.iter_child_nodes(one)))


def _other_results(returns: str) -> tuple[str, ...]:
    if returns == "bool":
        return "True", "False"
    if returns.endswith("| None"):
        return ("None",)
    empty = {
        "int": "0", "float": "0.0", "str": "\"\"", "list": "[]", "Sequence": "[]", "dict": "{}",
        "Mapping": "{}", "set": "set()", "frozenset": "frozenset()", "Iterator": "iter(())",
        "Iterable": "[]", "Collection": "[]",
    }  # fmt: skip
    if returns.startswith("tuple[") and returns.endswith(", ...]"):
        return ("()",)
    name = returns.partition("[")[0]
    return (empty[name],) if name in empty else ()
