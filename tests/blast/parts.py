"""Parts that can fail, each on a stage of real processes: a store, workers, and often a service."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import ClassVar

import psycopg
from psycopg.conninfo import conninfo_to_dict

import tenure
from tenure.engines.sharded.members import members_of
from tenure.engines.sharded.placing import Placing
from tenure.server.token_file import create_token
from tests.server.process import ServiceProcess
from tests.support import postgres
from tests.workers import errands
from tests.workers.life import ROOT, Place, WorkerProcess, until


class Skipped(Exception):
    """A part cannot be made to fail on this machine."""


class Stage:
    """What runs before, while and after a part fails, and who is promised what. `seconds` is how
    long it fails."""

    name: ClassVar[str]
    serves: ClassVar[bool] = False  # whether workers and producers use a service
    options: ClassVar[tuple[str, ...]] = ()  # of its workers
    workers: ClassVar[int] = 1
    least_seconds: ClassVar[float] = 0.0  # for which it must fail to have an effect
    lease: float = 4.0  # seconds; the longer jobs of the others run longer than that
    has_long_jobs: ClassVar[bool] = True
    floor: ClassVar[float] = 0.5  # seconds that a job may take to begin, however short it was
    only_store: ClassVar[bool] = False  # whether others depend on the part that fails

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder = folder
        self.seconds = max(seconds, self.least_seconds)
        self.tenant = "sound"  # whose jobs must not notice
        self.own: list[str] = []  # other jobs that must run once
        self.service: ServiceProcess | None = None
        self._exits = ExitStack()
        self.place = Place(folder, self.store())

    def store(self) -> str:
        """The URL of its store."""
        return f"sqlite:///{self.folder}/jobs.db"

    @contextmanager
    def failing(self) -> Iterator[None]:
        """The part fails until the block ends."""
        raise NotImplementedError

    @property
    def url(self) -> str:
        """What the others use."""
        return self.place.url if self.service is None else self.service.url

    def connect(self) -> tenure.Queue:
        settings = {"url": self.url, "token": self.place.settings.get("TENURE_TOKEN")}
        return tenure.connect(settings=tenure.Settings(**settings))  # type: ignore[arg-type]

    @contextmanager
    def running(self) -> Iterator[Stage]:
        """All processes, until the block ends."""
        with self._exits:
            self._exits.callback(self.place.clean_up)
            if self.serves:
                self.service = self._service()
                self._exits.callback(self.service.kill)
                self.service.start()
            options = ("--queues", "q", "--lease", f"{self.lease}s", "--concurrency", "40")
            for _ in range(self.workers):
                WorkerProcess(self.place, *options, *self.options, url=self.url)
            for worker in self.place.workers:
                worker.ready(processes=2 if "--processes" in self.options else 1)
            yield self

    def _service(self) -> ServiceProcess:
        return ServiceProcess(self.folder, store=self.place.url)

    def enqueue(self, *jobs: tenure.NewJob) -> list[str]:
        with self.connect() as queue:
            return list(queue.enqueue_many(jobs))

    def pids(self) -> list[int]:
        """The processes whose memory is bounded."""
        return [*self.place.pids(), *([self.service.process.pid] if self.service else [])]


# Shards -------------------------------------------------------------------------------------------


class Proxy:
    """A way to a PostgreSQL server that can be cut or slow."""

    def __init__(self, url: str) -> None:
        known = conninfo_to_dict(url.partition("&schema=")[0])
        self._host, self._port = str(known["host"]), int(known.get("port") or 5432)
        self.away = False
        self.delay = 0.0  # seconds before each answer
        self._open: set[socket.socket] = set()
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._door.getsockname()[1]
        threading.Thread(target=self._let_in, daemon=True).start()

    def cut(self) -> None:
        self.away = True
        for one in list(self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.cut()
        with suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()

    def _let_in(self) -> None:
        with suppress(OSError):  # it was closed
            while True:
                client, _ = self._door.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            if self.away:
                return
            with self._server() as server:
                both = {client, server}
                self._open |= both
                asking = threading.Thread(target=self._pass_on, args=(client, server), daemon=True)
                asking.start()
                self._pass_on(server, client, answers=True)
                asking.join()
                self._open -= both

    def _server(self) -> socket.socket:
        if not self._host.startswith("/"):
            return socket.create_connection((self._host, self._port))
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{self._host}/.s.PGSQL.{self._port}")
        return server

    def _pass_on(
        self, source: socket.socket, target: socket.socket, *, answers: bool = False
    ) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                if answers and self.delay:
                    time.sleep(self.delay)
                target.sendall(data)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class _Shards(Stage):
    """Two schemas of a server, each behind a proxy; the second one fails."""

    least_seconds = 8.0  # after five, it is given up

    def __init__(self, folder: Path, seconds: float) -> None:
        self._proxies: list[Proxy] = []
        super().__init__(folder, seconds)
        self.lease = self.seconds + 4  # nobody can renew a lease on a shard that is away
        self.tenant, self._sick = (self._tenant_of(number) for number in (0, 1))

    def store(self) -> str:
        lines = [f'{number} = "{self._shard(number)}"\n' for number in range(2)]
        file = self.folder / "shards.toml"
        file.write_text(f"[shards]\n{''.join(lines)}")
        return f"shards:///{file}"

    def _shard(self, number: int) -> str:
        folder = self.folder / str(number)
        url = postgres.url_of(folder)
        self._exits.callback(postgres.drop, folder)
        proxy = Proxy(url)
        self._exits.callback(proxy.close)
        self._proxies.append(proxy)
        schema = postgres.schema_of(folder)
        return f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres?schema={schema}"

    def _tenant_of(self, shard: int) -> str:
        members = members_of(self.place.url)
        placing = Placing(list(members.urls), spread=members.spread)
        return next(name for name in map(str, range(99)) if placing.of_tenant(name) == shard)

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Jobs of the shard end while it fails; their outcomes must be stored when it is back."""
        task = errands.quick.using(queue="q", tenant=self._sick, max_attempts=1)
        self.own = self.enqueue(*[task.job(min(1.0, self.seconds / 2))] * 5)
        until(lambda: {one.id for one in self.place.events("began")} >= set(self.own))
        stop = threading.Event()
        trying = threading.Thread(target=self._try, args=(stop,), daemon=True)
        with self._trouble():
            trying.start()
            yield
        stop.set()
        trying.join()

    def _try(self, stop: threading.Event) -> None:
        """Its tenant goes on, and meets errors."""
        with self.connect() as queue:
            while not stop.wait(0.1):
                with suppress(tenure.TenureError):
                    queue.enqueue("elsewhere", tenant=self._sick)

    @contextmanager
    def _trouble(self) -> Iterator[None]:
        self._proxies[1].cut()
        yield
        self._proxies[1].away = False


class ShardAway(_Shards):
    name = "shard away"


class ShardAwayBehindService(_Shards):
    name = "shard away, service"
    serves = True
    workers = 2


class ShardSlow(_Shards):
    name = "shard slow"

    @contextmanager
    def _trouble(self) -> Iterator[None]:
        self._proxies[1].delay = 2.0
        yield
        self._proxies[1].delay = 0.0


class ShardSlowBehindService(ShardSlow):
    name = "shard slow, service"
    serves = True
    workers = 2


class FullDisk(_Shards):
    """Two files, the second on a small disk."""

    name = "full disk"
    least_seconds = 0.0

    def _shard(self, number: int) -> str:
        if number == 0:
            return f"sqlite:///{self.folder}/0.db"
        self._disk = Path(tempfile.mkdtemp(prefix="tenure-disk-"))
        mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(self._disk)]
        if shutil.which("mount") is None or subprocess.run(mount, check=False).returncode != 0:
            self._disk.rmdir()
            raise Skipped("a small disk cannot be mounted here")
        self._exits.callback(self._disk.rmdir)
        self._exits.callback(subprocess.run, ["umount", "-l", str(self._disk)], check=True)
        return f"sqlite:///{self._disk}/1.db"

    @contextmanager
    def _trouble(self) -> Iterator[None]:
        ballast = self._disk / "ballast"
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(b"x" * 4096)
        yield
        ballast.unlink()


# Jobs ---------------------------------------------------------------------------------------------


class LockedRow(Stage):
    """Jobs overrun their timeout while a transaction of the application holds their rows."""

    name = "locked rows"
    least_seconds = 10.0  # each overrun job may wait for its row for 2.7

    def store(self) -> str:
        self._exits.callback(postgres.drop, self.folder)
        return postgres.url_of(self.folder)

    @contextmanager
    def failing(self) -> Iterator[None]:
        stuck = errands.never_mind_cancelling.using(
            queue="q", tenant="sick", timeout=0.5, max_attempts=1
        )
        ids = self.enqueue(*[stuck.job()] * 6)
        until(lambda: {one.id for one in self.place.events("began")} >= set(ids))
        with psycopg.connect(postgres.shared_url()) as connection, self.connect() as queue:
            for id in ids:
                queue.enqueue("elsewhere", after=[id], connection=connection)
            yield
            connection.rollback()


class Crash(Stage):
    """A job kills its process, among jobs that were claimed with it."""

    name = "crashing job"
    options = ("--processes", "2")
    floor = 6.0  # what its process had claimed waits for the end of the lease

    @contextmanager
    def failing(self) -> Iterator[None]:
        self._poison()
        yield

    def _poison(self) -> None:
        poison = errands.kill_the_worker.using(queue="q", tenant="sick", max_attempts=4)
        beside = errands.quick.using(queue="q", tenant=self.tenant, max_attempts=3)
        self.own = self.enqueue(poison.job(), *[beside.job(0.1)] * 9)[1:]


class BlockedLoop(Stage):
    """A job blocks the event loop of its process for longer than a lease."""

    name = "blocked event loop"
    least_seconds = 6.0
    options = ("--processes", "2")
    floor = 6.0  # what its process had claimed waits for the end of the lease

    @contextmanager
    def failing(self) -> Iterator[None]:
        self.enqueue(errands.block_until_told.using(queue="q", tenant="sick").job("unblock"))
        yield
        self.place.give("unblock")


class BusyThread(Stage):
    """Jobs in threads never let go of the interpreter by themselves."""

    name = "busy threads"

    @contextmanager
    def failing(self) -> Iterator[None]:
        busy = errands.compute_without_rest.using(queue="q", tenant="sick")
        self.enqueue(*[busy.job(self.seconds)] * 2)
        yield


# The only store, and clients of a service ---------------------------------------------------------


class SlowStore(_Shards):
    """The only store answers after ten seconds; what does not need it goes on."""

    name = "store after 10 s"
    serves = True
    only_store = True
    least_seconds = 12.0

    def __init__(self, folder: Path, seconds: float) -> None:
        super().__init__(folder, seconds)
        self.lease = 30.0
        self.tenant = "sound"

    def store(self) -> str:
        return self._shard(0)

    def _tenant_of(self, shard: int) -> str:
        return "sound"

    @contextmanager
    def failing(self) -> Iterator[None]:
        self._proxies[0].delay = 10.0
        yield
        self._proxies[0].delay = 0.0


class _Client(Stage):
    """An abusive client beside others of a service."""

    serves = True
    program: ClassVar[str]

    def _service(self) -> ServiceProcess:
        tokens = self.folder / "tokens.json"
        self.place.settings["TENURE_TOKEN"] = create_token(tokens, "sound", ["admin"])
        self._greedy = create_token(tokens, "greedy", ["admin"])
        return ServiceProcess(self.folder, "--tokens", str(tokens), store=self.place.url)

    @contextmanager
    def failing(self) -> Iterator[None]:
        assert self.service is not None
        program = subprocess.Popen(
            [sys.executable, "-m", "tests.server.attacks.programs", self.program,
             str(self.service.port), self._greedy, "1"],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert program.stdin is not None
        assert program.stdout is not None
        try:
            assert program.stdout.readline() == b"prepared\n"
            program.stdin.write(b"go\n")
            program.stdin.flush()
            assert program.stdout.readline() == b"attacking\n"
            yield
        finally:
            program.kill()
            program.wait()
            program.stdin.close()
            program.stdout.close()


def _client(text: str, named: str, least_seconds: float = 0.0) -> type[_Client]:
    given = {"name": text, "program": named, "least_seconds": least_seconds}
    return type(named.title().replace(" ", ""), (_Client,), given)


PARTS: tuple[type[Stage], ...] = (
    ShardAway, ShardAwayBehindService, ShardSlow, ShardSlowBehindService, FullDisk, LockedRow,
    Crash, BlockedLoop, BusyThread, SlowStore,
    _client("client floods", "health floods"),
    _client("client hangs up", "calls left"),
    _client("client connects", "idle connections", 15.0),
    _client("client reads slowly", "unread pages"),
    _client("largest bodies", "dense bodies"),
    _client("largest batches", "large batches"),
    _client("largest enqueues", "large enqueues"),
    _client("largest jobs", "large claims"),
)  # fmt: skip
