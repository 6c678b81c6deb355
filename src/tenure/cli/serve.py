"""Commands for the HTTP service: serve, token."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shlex import quote as quoted
from urllib.parse import quote

import click
from rich.console import RenderableType

from tenure.cli.context import App, json_option, pass_app
from tenure.cli.params import IntRange, log_options, target
from tenure.cli.tables import cell, frame, words
from tenure.demo_app import app as demonstration
from tenure.demo_app import begin
from tenure.engines.remote import is_loopback
from tenure.errors import InvalidInput
from tenure.model.fields import MAX_ATTEMPTS
from tenure.observe.logs import log_as
from tenure.server.about import About
from tenure.server.auth import LOOPBACK, Scope, Token, Tokens
from tenure.server.connections import MOST
from tenure.server.dialects import NAMES
from tenure.server.guests import Guests
from tenure.server.token_file import create_token, read_tokens, revoke_token, tokens_of
from tenure.tasks.app import Tenure

log = logging.getLogger("tenure.service")

TOKENS = "tenure-tokens.json"
NEEDED = ("httptools", "prometheus_client")  # the packages of tenure[server]


@click.command()
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    envvar="TENURE_HOST",
    help="The address to listen on.",
)
@click.option(
    "--port",
    type=IntRange(0, 65_535),
    default=3100,
    show_default=True,
    envvar=["TENURE_PORT", "PORT"],
    help="The port to listen on; 0 picks a free one.",
)
@click.option(
    "--tokens",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="TENURE_TOKENS",
    help="The file that `tenure token create` writes; reloaded when it changes. Without tokens, "
    "only this machine is served.",
)
@click.option(
    "--anonymous",
    metavar="SCOPES",
    envvar="TENURE_ANONYMOUS",
    help="What clients of --from-network may do without a token: produce, work, read, maintain, "
    "separated by commas.",
)
@click.option(
    "--from-network",
    "networks",
    metavar="CIDR",
    multiple=True,
    envvar="TENURE_FROM_NETWORK",
    help="A network whose clients need no token for --anonymous; can be repeated.",
)
@click.option(
    "--allowed-hosts",
    metavar="NAMES",
    envvar="TENURE_ALLOWED_HOSTS",
    help="Host names that clients can use, separated by commas; * for any. Default: localhost if "
    "there are no tokens, otherwise any.",
)
@click.option(
    "--max-connections",
    type=IntRange(1, 1_000_000),
    default=MOST,
    show_default=True,
    envvar="TENURE_MAX_CONNECTIONS",
    help="Maximum number of connections; a quarter is reserved for clients with a token.",
)
@click.option(
    "--dialects",
    envvar="TENURE_DIALECTS",
    default=",".join(NAMES),
    show_default=True,
    help="Other APIs to serve besides the native one.",
)
@click.option(
    "--d1-max-attempts",
    type=IntRange(1, MAX_ATTEMPTS),
    envvar="TENURE_D1_MAX_ATTEMPTS",
    help="Attempts of jobs of the d1 dialect. Default: no limit.",
)
@click.option(
    "--workers-in-process",
    "tasks",
    metavar="MODULE:APP",
    type=target,
    envvar="TENURE_WORKERS_IN_PROCESS",
    help="Also run the tasks of this app.",
)
@click.option(
    "--tenant-metrics",
    is_flag=True,
    envvar="TENURE_TENANT_METRICS",
    help="Also count the jobs of each tenant in /metrics.",
)
@click.option(
    "--environment",
    default="",
    envvar="TENURE_ENVIRONMENT",
    help="A name that the dashboard shows on every page, such as production.",
)
@click.option(
    "--banner", default="", envvar="TENURE_BANNER", help="A line of text on top of the dashboard."
)
@click.option(
    "--redact",
    default="",
    metavar="NAMES",
    envvar="TENURE_REDACT",
    help="Fields of payloads and results that are hidden from all who read jobs, separated by "
    "commas. Workers get them.",
)
@click.option(
    "--demo",
    is_flag=True,
    help="Also run a demo: a shop with several queues. --log-level debug logs its jobs.",
)
@click.option(
    "--mdns", is_flag=True, envvar="TENURE_MDNS", help="Announce the service on the network."
)
@log_options
@click.option(
    "--certfile",
    type=click.Path(exists=True, dir_okay=False),
    envvar="TENURE_CERTFILE",
    help="Serve https:// with this certificate.",
)
@click.option(
    "--keyfile",
    type=click.Path(exists=True, dir_okay=False),
    envvar="TENURE_KEYFILE",
    help="The key of the certificate.",
)
@json_option
@pass_app
def serve(
    app: App,
    host: str,
    port: int,
    tokens: Path | None,
    anonymous: str | None,
    networks: Sequence[str],
    allowed_hosts: str | None,
    max_connections: int,
    dialects: str,
    d1_max_attempts: int | None,
    tasks: Tenure | None,
    tenant_metrics: bool,
    environment: str,
    banner: str,
    redact: str,
    demo: bool,
    mdns: bool,
    log_level: str,
    log_format: str,
    certfile: str | None,
    keyfile: str | None,
) -> None:
    """Serve the queue over HTTP, and a dashboard at /.

    The native API is documented at /docs. Every option can be set in the environment, as TENURE_
    and its name. Without a URL, FDB_CLUSTER_FILE names the FoundationDB cluster to use.

    \b
    Example:
      tenure serve --port 3100 --tokens tenure-tokens.json
    """
    serve_until_signal = _hosting()
    log_as(log_format, log_level)
    guests = guests_of(anonymous, networks)
    known = tokens_of(tokens, os.environ, guests)
    refuse_strangers(host, known)
    named = [name.strip() for name in dialects.split(",") if name.strip()]
    if demo and tasks is not None:
        raise InvalidInput("demo", "cannot be combined with --workers-in-process")
    tasks = demonstration if demo else tasks
    holder = tasks or Tenure()
    holder.move_to(app.url or named_cluster(os.environ))
    with holder:
        if demo:
            begin(holder.queue)
            if log_level == "info":
                _keep_address_in_sight()
        serve_until_signal(
            holder,
            known,
            named,
            works=tasks is not None,
            tenants=tenant_metrics,
            host=host,
            port=port,
            certfile=certfile,
            keyfile=keyfile,
            mdns=mdns,
            allowed_hosts=hosts_of(allowed_hosts, host, known),
            max_connections=max_connections,
            d1_max_attempts=d1_max_attempts,
            about=About(environment, banner),
            redact=redact.split(","),
        )
    app.answer({"served": True}, lambda: words("The service has stopped."))


def _keep_address_in_sight() -> None:
    """Do not log the jobs of the demo: they would scroll the address off the screen."""
    for name in ("tenure.worker", "tenure.scheduler"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _hosting() -> Callable[..., None]:
    """Import the service. Not at the top, because that takes longer than most commands run, and
    needs packages that other commands do not."""
    try:
        from tenure.server.hosting import serve_until_signal
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in NEEDED:
            raise
        raise InvalidInput(
            "serve", f"needs {error.name}, which is not installed: pip install 'tenure[server]'"
        ) from None
    return serve_until_signal


def named_cluster(environ: Mapping[str, str]) -> str | None:
    """The URL for FDB_CLUSTER_FILE, which FoundationDB's tools use, unless TENURE_URL is set."""
    named = environ.get("FDB_CLUSTER_FILE")
    if not named or "TENURE_URL" in environ:
        return None
    return f"fdb://{quote(str(Path(named).absolute()))}"


def guests_of(anonymous: str | None, networks: Sequence[str]) -> Guests | None:
    """Who is let in without a token, if anybody."""
    if anonymous is None:
        if networks:
            raise InvalidInput("from-network", "needs --anonymous, such as produce,work")
        return None
    guests = Guests([name for name in anonymous.split(",") if name.strip()], networks)
    log.warning("clients are let in without a token: %s", guests)
    return guests


def hosts_of(given: str | None, host: str, tokens: Tokens) -> list[str] | None:
    """The host names that clients can use; None for any. Without tokens they are restricted, or a
    web page could control the service through a DNS name of its own. The same applies to guests."""
    if given is None and tokens.guests is not None and not is_loopback(host):
        raise InvalidInput(
            "anonymous", "also needs --allowed-hosts: the host names that clients use"
        )
    if given is None:
        return None if tokens.required and tokens.guests is None else [*LOOPBACK, host]
    names = [name.strip() for name in given.split(",") if name.strip()]
    if not names:
        raise InvalidInput("allowed-hosts", "name at least one host, or * for any")
    return None if "*" in names else names


def refuse_strangers(host: str, tokens: Tokens) -> None:
    """Without tokens, only allow listening on this machine, because anybody could do anything."""
    if not tokens.required and not is_loopback(host):
        raise InvalidInput(
            "host",
            f"{host} can be reached from other machines, and no tokens are set: create one with "
            f"`tenure token create`, and name its file with --tokens, or listen on 127.0.0.1",
        )


file_option = click.option(
    "--file",
    type=click.Path(dir_okay=False, path_type=Path),
    default=TOKENS,
    show_default=True,
    envvar="TENURE_TOKENS",
    help="The file that holds the tokens, as hashes.",
)


@click.group()
@json_option
def token() -> None:
    """Create, list and revoke the tokens of a service.

    \b
    Example:
      tenure token create web --scope produce --scope read --tenant acme
    """


@token.command()
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    required=True,
    type=click.Choice([scope.value for scope in Scope]),
    help="What the token allows; can be repeated.",
)
@click.option("--queue", "queues", multiple=True, help="Only this queue; can be repeated.")
@click.option("--tenant", "tenants", multiple=True, help="Only this tenant; can be repeated.")
@file_option
@json_option
@pass_app
def create(
    app: App,
    name: str,
    scopes: Sequence[str],
    queues: Sequence[str],
    tenants: Sequence[str],
    file: Path,
) -> None:
    """Create a token. It is shown once; only its hash is stored.

    \b
    Example:
      tenure token create worker --scope work --queue mail
    """
    secret = create_token(file, name, scopes, queues, tenants)
    app.answer({"name": name, "token": secret}, lambda: words(secret))
    if not app.as_json:
        click.echo(
            f"Added to {file}. Start the service with: tenure serve --tokens {quoted(str(file))}\n"
            "A service that already reads this file accepts the token within two seconds.",
            err=True,
        )


@token.command(name="list")
@file_option
@json_option
@pass_app
def list_(app: App, file: Path) -> None:
    """List the tokens, without their secrets.

    \b
    Example:
      tenure token list
    """
    found = read_tokens(file)
    app.answer(found, lambda: _listed(found))


def _listed(found: Sequence[Token]) -> RenderableType:
    if not found:
        return words("There are no tokens.")
    table = frame("name", "scopes", "queues", "tenants")
    for one in found:
        table.add_row(
            cell(one.name),
            cell(", ".join(one.scopes)),
            cell("all" if one.queues is None else ", ".join(one.queues)),
            cell("all" if one.tenants is None else ", ".join(one.tenants)),
        )
    return table


@token.command()
@click.argument("name")
@file_option
@json_option
@pass_app
def revoke(app: App, name: str, file: Path) -> None:
    """Revoke a token.

    \b
    Example:
      tenure token revoke web
    """
    revoke_token(file, name)
    app.answer(
        {"revoked": name},
        lambda: words(f"Token {name} is revoked; a running service notices within seconds."),
    )
