"""Change one decision at a time, and list the changes that no test notices.

    python -m tests.mutation --seed 0 --count 300
    python -m tests.mutation --since HEAD~20
    python -m tests.mutation --only src/tenure/engines/sqlite
    python -m tests.mutation --mutation 0f3a5c21de

Mutations that survived once come first, in every run; all of them must be killed. Then come those
in lines that have changed since a commit, then the others; each function once before any a second
time. Each seed takes the next of this list, so that runs do not repeat each other: with 2,100
functions, seven of them with 300 mutations each have changed every function. The working tree is
not touched. Each finished mutation prints a line, and so does each set of tests that did not
notice one; the last line is a summary. Exits with 1 if a mutation that is not in accepted.toml
survives.
"""

from __future__ import annotations

import argparse
import queue
import random
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial

import click

from tests.mutation import accepted, changed, named, python, targets
from tests.mutation.copy import Copy, Misused, Outcome
from tests.mutation.mutation import Mutation
from tests.mutation.targets import Selection


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    texts = {path: (targets.ROOT / path).read_text() for path in targets.files()}
    try:
        chosen = _chosen(options, texts)
    except named.NoLongerApplies as error:
        click.echo(str(error))
        return 1
    if options.list:
        for one in chosen:
            click.echo(f"{one.id}  {one.path}:{one.line}  {one.kind}: {one.before} => {one.after}")
        return 0
    run = Run(options, texts)
    run.all(chosen)
    return run.report()


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=0, help="the n-th part of all mutations")
    parser.add_argument("--since", help="begin with lines that have changed since this commit")
    parser.add_argument("--count", type=int, default=300, help="random mutations, after the named")
    parser.add_argument("--only", action="append", help="files whose path begins with this")
    parser.add_argument("--kind", help="mutations of this kind only")
    parser.add_argument("--function", help="mutations in functions with this in their name only")
    parser.add_argument("--mutation", action="append", help="an id, or the name of a named one")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, help="begin no mutation after this time")
    parser.add_argument(
        "--first", type=int, help="run only so many test selections; survivors are candidates then"
    )
    parser.add_argument("--no-named", action="store_true", help="only random mutations")
    parser.add_argument("--list", action="store_true", help="only list what would be run")
    return parser.parse_args(arguments)


def _chosen(options: argparse.Namespace, texts: dict[str, str]) -> list[Mutation]:
    """The named mutations, and a part of the others."""
    listed = [named.mutation(one, texts[one.path]) for one in named.NAMED]
    every = [one for path, text in texts.items() for one in targets.mutations_of(path, text)]
    if options.mutation:
        wanted = set(options.mutation)
        return [one for one in [*listed, *every] if {one.id, one.kind[7:]} & wanted]
    only = tuple(options.only or [""])
    some = [
        one
        for one in every
        if one.path.startswith(only)
        and options.kind in (None, one.kind)
        and (options.function or "") in one.function
    ]
    new = changed.lines_since(options.since) if options.since else {}
    some = sampled(some, new)[options.seed * options.count :][: options.count]
    chosen = [] if options.no_named else [one for one in listed if one.path.startswith(only)]
    for one in some:
        text = texts[one.path]
        if one.path.endswith(".sql") or python.compiles(text, one.apply(text)):
            chosen.append(one)
    return chosen


def sampled(every: Sequence[Mutation], new: Mapping[str, Collection[int]]) -> list[Mutation]:
    """All mutations in the order in which they are tried: new lines first, and each function once
    before any a second time. Otherwise functions with many conditions get nearly all, and most
    functions none."""
    mixed = list(every)
    random.Random(0).shuffle(mixed)
    seen: Counter[tuple[bool, str, str]] = Counter()
    ranks: dict[int, tuple[bool, int]] = {}
    for one in mixed:
        is_old = one.line not in new.get(one.path, ())
        ranks[id(one)] = is_old, seen[is_old, one.path, one.function]
        seen[is_old, one.path, one.function] += 1
    return sorted(mixed, key=lambda one: ranks[id(one)])


class Run:
    """Tries mutations, and keeps what became of each."""

    def __init__(self, options: argparse.Namespace, texts: dict[str, str]) -> None:
        self._options = options
        self._texts = texts
        self._accepted = accepted.read()
        self._outcomes: dict[Mutation, Outcome] = {}
        self._not_run = 0
        self._seconds = 0.0
        self._broken: list[str] = []  # tests that fail without a mutation

    def all(self, chosen: Sequence[Mutation]) -> None:
        begun = time.monotonic()
        click.echo(f"{len(chosen)} mutations, {self._options.jobs} at a time")
        copies = [Copy() for _ in range(self._options.jobs)]
        free: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for copy in copies:
            free.put(copy)

        def one(mutation: Mutation) -> Outcome | None:
            if self._options.seconds and time.monotonic() - begun > self._options.seconds:
                return None
            copy = free.get()
            try:
                selections = targets.selections(mutation)[: self._options.first]
                return copy.try_out(mutation, selections, partial(_unnoticed, mutation))
            finally:
                free.put(copy)

        try:
            with ThreadPoolExecutor(self._options.jobs) as pool, _cancelled(pool, copies):
                tried = {pool.submit(one, mutation): mutation for mutation in chosen}
                for future in as_completed(tried):
                    outcome = future.result()
                    if outcome is None:
                        self._not_run += 1
                    else:
                        self._outcomes[tried[future]] = outcome
                        self._show(tried[future], outcome, len(chosen), time.monotonic() - begun)
            self._broken = copies[0].fail_unchanged(sorted(self._killers()))
        finally:
            for copy in copies:
                copy.close()
            self._seconds = time.monotonic() - begun

    def _killers(self) -> set[str]:
        """Tests that noticed a mutation; some are noticed before any test can run."""
        return {
            one.test for one in self._outcomes.values() if one.what == "killed" and "::" in one.test
        }

    def _is_accepted(self, mutation: Mutation) -> bool:
        text = self._texts[mutation.path]
        return any(one.covers(mutation, text) for one in self._accepted)

    def _show(self, mutation: Mutation, outcome: Outcome, total: int, seconds: float) -> None:
        done = len(self._outcomes)
        what = outcome.what
        if what == "survived" and self._is_accepted(mutation):
            what = "accepted"
        click.echo(
            f"[{done}/{total} {done / seconds * 60:.1f}/min] {what} {outcome.seconds:.0f} s "
            f"{mutation.id} {mutation.path}:{mutation.line} {mutation.function} "
            f"({mutation.kind}) {outcome.test}"
        )
        if what == "survived":
            click.echo(self._survivor(mutation))

    def _survivor(self, mutation: Mutation) -> str:
        seed = self._options.seed
        return (
            f"{mutation.diff(self._texts[mutation.path])}\n"
            f"  function = {accepted.place(mutation)!r}\n"
            f"  change = {f'{mutation.kind}: {mutation.before} ==> {mutation.after}'!r}\n"
            f"  rerun: python -m tests.mutation --mutation {mutation.id}  (found with seed {seed})"
        )

    def report(self) -> int:
        """Print a table by file, and all survivors; the exit code."""
        by_file: dict[str, Counter[str]] = defaultdict(Counter)
        survivors = []
        for mutation, outcome in self._outcomes.items():
            what = outcome.what
            if what == "killed" and outcome.test in self._broken:
                what = "not counted"
            elif what == "survived" and self._is_accepted(mutation):
                what = "accepted"
            elif what == "survived":
                survivors.append(mutation)
            by_file[mutation.path][what] += 1
        columns = ("killed", "timeout", "accepted", "survived", "not counted")
        click.echo(f"\n{'':52}" + "".join(f"{name:>13}" for name in columns))
        total: Counter[str] = Counter()
        for path, counts in sorted(by_file.items()):
            total += counts
            click.echo(f"{path:52}" + "".join(f"{counts[name]:13}" for name in columns))
        click.echo(f"{'all':52}" + "".join(f"{total[name]:13}" for name in columns))
        for mutation in survivors:
            click.echo(f"\nsurvived: {mutation.kind} in {mutation.function or 'the module'}")
            click.echo(self._survivor(mutation))
        for test in self._broken:
            click.echo(f"\nfails without a mutation, so it proves nothing: {test}")
        click.echo(f"\n{self._summary(total)}")
        return 1 if survivors or self._broken else 0

    def _summary(self, total: Counter[str]) -> str:
        """One line for all mutations; accepted ones are survivors, too."""
        counted = total.total() - total["not counted"]
        survivors = total["accepted"] + total["survived"]
        return (
            f"{total.total()} mutations in {self._seconds / 60:.0f} min: {total['killed']} killed, "
            f"{total['timeout']} timed out, {total['accepted']} accepted, "
            f"{total['survived']} survived, {total['not counted']} not counted; "
            f"{self._not_run} not run for lack of time; "
            f"{survivors / max(counted, 1):.1%} not noticed by any test"
        )


def _unnoticed(mutation: Mutation, selection: Selection, seconds: float) -> None:
    click.echo(f"  {mutation.id} not noticed after {seconds:.0f} s: {_short(selection.name)}")


def _short(text: str, most: int = 100) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


@contextmanager
def _cancelled(pool: ThreadPoolExecutor, copies: Sequence[Copy]) -> Iterator[None]:
    """Nothing goes on once the run is interrupted."""
    try:
        yield
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for copy in copies:
            copy.interrupt()
        raise


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # all that was started is ended
    try:
        sys.exit(main(sys.argv[1:]))
    except Misused as error:
        click.echo(f"the tests cannot be run:\n{error}", err=True)
        sys.exit(2)
