"""Mutations of SQL, each of which changes one decision: in named statements, and in functions in
SQL or PL/pgSQL."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from tests.mutation.mutation import Edit

_TOKEN = re.compile(
    r"""(?P<space>\s+)|(?P<comment>--[^\n]*)|(?P<string>'(?:[^']|'')*')|(?P<body>\$\$)
    |(?P<parameter>%s|%\(\w+\)s|\?\d*|(?<!:):[a-z]\w*)
    |(?P<number>\d+)|(?P<word>[A-Za-z_][A-Za-z_0-9]*)
    |(?P<operator>:=|::|<=|>=|<>|=>|->>|->|\|\||[-+*/<>=(),;.\[\]:@#%|&])""",
    re.VERBOSE,
)
_OTHER_COMPARE = {
    "<": ("<=", ">="),
    "<=": ("<", ">"),
    ">": (">=", "<="),
    ">=": (">", "<"),
    "=": ("<>",),
    "<>": ("=",),
}
_OTHER_WORD = {
    "MIN": "max", "MAX": "min", "GREATEST": "least", "LEAST": "greatest",
    "BOOL_OR": "bool_and", "BOOL_AND": "bool_or", "TRUE": "false", "FALSE": "true",
}  # fmt: skip
# What begins a condition, and what ends it.
_OPENS = {"WHERE", "ON", "IF", "ELSIF", "WHEN", "HAVING", "AND", "OR"}
_CLOSES = {
    "WHERE", "GROUP", "ORDER", "LIMIT", "OFFSET", "RETURNING", "FOR", "THEN", "LOOP", "UNION",
    "JOIN", "LEFT", "CROSS", "INNER", "ON", "DO", "SET", "FROM", "AND", "OR", "INTO", "ELSE", "END",
    "AS",
}  # fmt: skip
# Keywords before a column list, a condition or an assignment, within one pair of brackets.
_CLAUSES = _OPENS | {"SELECT", "SET", "FROM", "VALUES", "ORDER", "LIMIT", "RETURNING", "INSERT",
                     "UPDATE", "DELETE", "RAISE", "THEN", "ELSE", "CASE", "BY"}  # fmt: skip
_DROPPED = {"PERFORM", "INSERT", "UPDATE", "DELETE", "RETURN", "CONTINUE", "EXIT", "RAISE"}
# A partial index is used only if the query repeats its condition.
_INDEX_HINT = re.compile(r"(\w+\.)?state <> 2")
_SECTION = re.compile(
    r"^-- (?P<part>version|fragment|name): (?P<name>\S+)$"
    r"|^CREATE (?:OR REPLACE )?FUNCTION (?P<function>\S+?)\(",
    re.MULTILINE,
)


class Token(NamedTuple):
    """A word or symbol, and its position."""

    kind: str
    text: str
    start: int
    end: int
    depth: int  # of brackets

    @property
    def word(self) -> str:
        return self.text.upper() if self.kind == "word" else self.text


class Section(NamedTuple):
    """A named statement or the body of a function."""

    name: str
    start: int
    end: int


def sections(text: str) -> list[Section]:
    """The parts of a file that decide something. If a function is defined twice with the same
    parameters, the last definition counts; functions of one name may have other parameters."""
    marks = [*_SECTION.finditer(text)]
    found: dict[tuple[str, str], Section] = {}
    for n, mark in enumerate(marks):
        end = marks[n + 1].start() if n + 1 < len(marks) else len(text)
        if mark["part"] == "version":
            continue
        if mark["function"] is not None:
            start = text.find("$$", mark.end()) + 2
            end = text.find("$$", start)
            parameters = " ".join(text[mark.end() : text.find(")", mark.end())].split())
            name = mark["function"] + "()"
            found[name, parameters] = Section(name, start, end)
        else:
            found[mark["name"], ""] = Section(mark["name"], mark.end(), end)
    return list(found.values())


def tokens(text: str, start: int, end: int) -> list[Token]:
    """The words and symbols between two positions, without whitespace and comments."""
    found: list[Token] = []
    depth, at = 0, start
    while at < end:
        match = _TOKEN.match(text, at, end)
        if match is None:
            at += 1
            continue
        at = match.end()
        assert match.lastgroup is not None
        if match.lastgroup in ("space", "comment"):
            continue
        sign = match.group()
        depth -= sign in ")]"
        found.append(Token(match.lastgroup, sign, match.start(), at, depth))
        depth += sign in "(["
    return found


def edits(text: str, *, true: str) -> Iterator[Edit]:
    """All edits of a file. `true` is how its SQL dialect writes a condition that always holds."""
    for section in sections(text):
        yield from _Finder(text, section, true).edits()


class _Finder:
    """Collects the edits of one statement or body."""

    def __init__(self, text: str, section: Section, true: str) -> None:
        self._text = text
        self._section = section
        self._true = true
        self._tokens = tokens(text, section.start, section.end)

    def _edit(self, start: int, end: int, new: str, kind: str) -> Edit:
        return Edit(start, end, new, kind, self._section.name)

    def edits(self) -> Iterator[Edit]:
        for n in range(len(self._tokens)):
            yield from self._word(n)
            yield from self._comparison(n)
            yield from self._condition(n)
            yield from self._first_of_several(n)
            yield from self._order(n)
            yield from self._limit(n)
            yield from self._lock(n)
            yield from self._arithmetic(n)
            yield from self._default(n)
            yield from self._statement(n)

    def _next(self, n: int) -> str:
        return self._tokens[n + 1].word if n + 1 < len(self._tokens) else ""

    def _previous(self, n: int) -> str:
        return self._tokens[n - 1].word if n else ""

    def _clause(self, n: int) -> str:
        """The keyword that decides what a symbol means."""
        depth = self._tokens[n].depth
        for one in reversed(self._tokens[:n]):
            if one.depth < depth:
                return "("
            if one.depth == depth and one.word in _CLAUSES:
                return one.word
            if one.depth == depth and one.text == ";":
                return ";"
        return ""

    def _until(self, n: int, ends: set[str]) -> int:
        """The first token after n that ends what n begins."""
        depth = self._tokens[n].depth
        cases = 0
        for m in range(n + 1, len(self._tokens)):
            one = self._tokens[m]
            if one.depth < depth or (one.depth == depth and one.text in (";", ",")):
                return m
            if one.depth == depth:
                if one.word == "CASE":
                    cases += 1
                elif cases:
                    cases -= one.word == "END"
                elif one.word in ends:
                    return m
        return len(self._tokens)

    def _slice(self, first: int, last: int) -> tuple[int, int]:
        """The text of some tokens."""
        return self._tokens[first].start, self._tokens[last - 1].end

    # What may be changed -------------------------------------------------------------------------

    def _word(self, n: int) -> Iterator[Edit]:
        one = self._tokens[n]
        if one.kind != "word":
            return
        if one.word in ("AND", "OR") and not self._of_between(n):
            new = "OR" if one.word == "AND" else "AND"
            yield self._edit(one.start, one.end, new, "and/or")
        elif one.word == "NOT" and self._next(n) != "NULL":
            yield self._edit(one.start, one.end, "", "drop not")
        elif self._may_be_negated(n):
            yield self._edit(one.start, one.start, "NOT ", "negate")
        elif one.word == "NULL" and self._previous(n) == "NOT" and n > 1:
            if self._tokens[n - 2].word == "IS":
                before = self._tokens[n - 1]
                yield self._edit(before.start, before.end, "", "negate")
        elif one.word in _OTHER_WORD and (self._next(n) == "(" or one.word in ("TRUE", "FALSE")):
            yield self._edit(one.start, one.end, _OTHER_WORD[one.word], "min/max")

    def _may_be_negated(self, n: int) -> bool:
        word, previous = self._tokens[n].word, self._previous(n)
        if word in ("EXISTS", "IN"):
            return previous not in ("NOT", "FOR", "EACH")
        return word == "NULL" and previous == "IS"

    def _of_between(self, n: int) -> bool:
        """Whether an AND belongs to a BETWEEN."""
        depth = self._tokens[n].depth
        for one in reversed(self._tokens[:n]):
            if one.depth < depth or (one.depth == depth and one.word in ("AND", "OR", "WHERE")):
                return False
            if one.depth == depth and one.word == "BETWEEN":
                return True
        return False

    def _comparison(self, n: int) -> Iterator[Edit]:
        one = self._tokens[n]
        if one.text not in _OTHER_COMPARE:
            return
        if one.text == "=" and self._clause(n) in ("SET", "UPDATE", "RAISE", ";"):
            return
        for new in _OTHER_COMPARE[one.text]:
            yield self._edit(one.start, one.end, new, "comparison")

    def _condition(self, n: int) -> Iterator[Edit]:
        """Make one part of a condition always true, or negate it."""
        one = self._tokens[n]
        if one.word not in _OPENS or (one.word == "AND" and self._of_between(n)):
            return
        if self._previous(n) == "END" or self._next(n) in ("CONFLICT", "NOT", ""):
            return
        last = self._until(n, _CLOSES)
        if last == n + 1:
            return
        if last < len(self._tokens) and self._is_between(n, last):
            last = self._until(last, _CLOSES)
        start, end = self._slice(n + 1, last)
        neutral = "false" if one.word == "OR" else "true"
        if self._true == "1":
            neutral = {"false": "0", "true": "1"}[neutral]
        if not _INDEX_HINT.fullmatch(self._text[start:end]):
            yield self._edit(start, end, neutral, "drop condition")
        depth = one.depth
        compared = {t.text for t in self._tokens[n:last] if t.depth == depth} & set(_OTHER_COMPARE)
        words = {t.word for t in self._tokens[n:last]}
        if not compared and not words & {"NOT", "IN", "EXISTS", "NULL"}:
            yield self._edit(start, end, f"NOT ({self._text[start:end]})", "negate")

    def _first_of_several(self, n: int) -> Iterator[Edit]:
        """Leave out the first operand of an OR, or of an AND within brackets."""
        one = self._tokens[n]
        in_brackets = one.text == "(" and self._next(n) not in (")", "SELECT", "")
        if not in_brackets and (one.word not in _OPENS - {"AND", "OR"}):
            return
        first = n + 1
        last = self._until(first if in_brackets else n, _CLOSES)
        if not first < last < len(self._tokens) or self._of_between(last):
            return
        neutral = {"OR": ("0", "false"), "AND": ("1", "true")}.get(self._tokens[last].word)
        if neutral is not None and (in_brackets or self._tokens[last].word == "OR"):
            yield self._edit(*self._slice(first, last), neutral[self._true != "1"], "drop operand")

    def _is_between(self, n: int, last: int) -> bool:
        depth = self._tokens[n].depth
        return self._tokens[last].word == "AND" and any(
            one.word == "BETWEEN" and one.depth == depth for one in self._tokens[n:last]
        )

    def _order(self, n: int) -> Iterator[Edit]:
        """Reverse the direction, or remove a column."""
        if self._tokens[n].word != "ORDER" or self._next(n) != "BY":
            return
        first = n + 2
        bounds = [first]
        while True:
            last = self._until(bounds[-1] - 1, {"LIMIT", "FOR", "OFFSET", "UNION", "LOOP"})
            if last >= len(self._tokens) or self._tokens[last].text != ",":
                break
            bounds.append(last + 1)
        ends = [bound - 1 for bound in bounds[1:]] + [last]
        for at, end in zip(bounds, ends, strict=True):
            if end <= at:
                return
            final = self._tokens[end - 1]
            if final.word in ("DESC", "ASC"):
                yield self._edit(final.start, final.end, "", "order")
            else:
                yield self._edit(final.end, final.end, " DESC", "order")
        if len(bounds) == 1:
            start, end = self._slice(n, last)
            yield self._edit(start, end, "", "order")
            return
        for m, at in enumerate(bounds):
            if m:
                start, end = self._tokens[at - 1].start, self._tokens[ends[m] - 1].end
            else:
                start, end = self._tokens[at].start, self._tokens[bounds[1]].start
            yield self._edit(start, end, "", "drop part of key")

    def _limit(self, n: int) -> Iterator[Edit]:
        if self._tokens[n].word != "LIMIT":
            return
        last = self._until(n, {"FOR", "OFFSET", "LOOP", "RETURNING"})
        start, end = self._slice(n, last)
        if self._text[start:end].split() != ["LIMIT", "1"]:
            yield self._edit(end, end, " + 1", "limit")
        if not any(one.kind == "parameter" for one in self._tokens[n:last]):
            yield self._edit(start, end, "", "limit")

    def _lock(self, n: int) -> Iterator[Edit]:
        """Do not lock a row, or do not wait for it."""
        one = self._tokens[n]
        if one.word == "FOR" and self._next(n) in ("UPDATE", "SHARE", "NO", "KEY"):
            last = n + 1
            kinds = {"NO", "KEY", "UPDATE", "SHARE", "OF", "SKIP", "LOCKED", "NOWAIT"}
            while self._tokens[last].word in kinds or self._tokens[last - 1].word == "OF":
                last += 1
            start, end = self._slice(n, last)
            yield self._edit(start, end, "", "drop lock")
        elif one.word == "SKIP" and self._next(n) == "LOCKED":
            yield self._edit(one.start, self._tokens[n + 1].end, "", "drop lock")

    def _arithmetic(self, n: int) -> Iterator[Edit]:
        one = self._tokens[n]
        binary = n > 0 and (
            self._tokens[n - 1].kind in ("word", "number", "parameter")
            or self._previous(n) in (")", "]")
        )
        if one.text in ("+", "-") and binary and self._next(n) != "[":
            yield self._edit(one.start, one.end, "-" if one.text == "+" else "+", "arithmetic")
        elif one.kind == "number" and self._previous(n) not in ("LIMIT", "[", "SELECT"):
            yield self._edit(one.start, one.end, str(int(one.text) + 1), "constant")

    def _default(self, n: int) -> Iterator[Edit]:
        """coalesce(a, b): use only one of them."""
        one = self._tokens[n]
        if one.word not in ("COALESCE", "IFNULL") or self._next(n) != "(":
            return
        depth = self._tokens[n + 1].depth + 1
        close = next(
            m for m in range(n + 2, len(self._tokens))
            if self._tokens[m].text == ")" and self._tokens[m].depth == depth - 1
        )  # fmt: skip
        comma = next(
            m for m in range(n + 2, close)
            if self._tokens[m].text == "," and self._tokens[m].depth == depth
        )  # fmt: skip
        start, end = self._slice(n, close + 1)
        for first, last in ((n + 2, comma), (comma + 1, close)):
            new = self._text[slice(*self._slice(first, last))]
            yield self._edit(start, end, f"({new})", "default")

    def _statement(self, n: int) -> Iterator[Edit]:
        """Leave out a statement of PL/pgSQL."""
        if not self._section.name.endswith("()"):
            return
        one = self._tokens[n]
        begins = self._previous(n) in (";", "BEGIN", "THEN", "ELSE", "LOOP")
        assigns = self._next(n) == ":=" and one.depth == 0
        if not begins or one.depth or not (one.word in _DROPPED or assigns):
            return
        if one.word == "RETURN" and self._next(n) not in (";", "QUERY"):
            return
        last = next(
            m for m in range(n, len(self._tokens))
            if self._tokens[m].text == ";" and self._tokens[m].depth == 0
        )  # fmt: skip
        start, end = self._slice(n, last)
        yield self._edit(start, end, "NULL", "drop statement")
