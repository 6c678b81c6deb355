"""Commands of the service: serve it, and make its tokens."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import click
from rich.console import RenderableType

from tenure.cli.context import App, json_option, pass_app
from tenure.cli.params import log_options, target
from tenure.cli.tables import cell, frame, words
from tenure.demo import app as demonstration
from tenure.demo import next_round
from tenure.errors import InvalidInput
from tenure.observe.logs import log_as
from tenure.server.auth import (
    Scope,
    Token,
    Tokens,
    create_token,
    read_tokens,
    revoke_token,
    tokens_of,
)
from tenure.server.connections import MOST
from tenure.server.dialects import NAMES
from tenure.server.origin import LOOPBACK
from tenure.tasks.app import Tenure

TOKENS = "tenure-tokens.json"


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
    type=click.IntRange(0, 65_535),
    default=3100,
    show_default=True,
    envvar=["TENURE_PORT", "PORT"],
    help="0 takes one that is free.",
)
@click.option(
    "--tokens",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="TENURE_TOKENS",
    help="The file of `tenure token create`, read again when it changes. Without tokens only this "
    "machine is served.",
)
@click.option(
    "--allowed-hosts",
    metavar="NAMES",
    envvar="TENURE_ALLOWED_HOSTS",
    help="Host names under which it may be reached, separated by commas; * for any. Default: "
    "localhost where there are no tokens, else any.",
)
@click.option(
    "--max-connections",
    type=click.IntRange(1, 1_000_000),
    default=MOST,
    show_default=True,
    envvar="TENURE_MAX_CONNECTIONS",
    help="A quarter of them is kept for clients with a token.",
)
@click.option(
    "--dialects",
    envvar="TENURE_DIALECTS",
    default=",".join(NAMES),
    show_default=True,
    help="Which other APIs are served beside the native one.",
)
@click.option(
    "--workers-in-process",
    "tasks",
    metavar="MODULE:APP",
    type=target,
    envvar="TENURE_WORKERS_IN_PROCESS",
    help="Run the tasks of an app, too.",
)
@click.option(
    "--tenant-metrics",
    is_flag=True,
    envvar="TENURE_TENANT_METRICS",
    help="Have /metrics count the jobs of each tenant, too.",
)
@click.option("--demo", is_flag=True, help="Have a small demonstration queue worked, too.")
@click.option("--mdns", is_flag=True, envvar="TENURE_MDNS", help="Announce it on the network.")
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
    allowed_hosts: str | None,
    max_connections: int,
    dialects: str,
    tasks: Tenure | None,
    tenant_metrics: bool,
    demo: bool,
    mdns: bool,
    log_level: str,
    log_format: str,
    certfile: str | None,
    keyfile: str | None,
) -> None:
    """Serve the queue over HTTP.

    The native API is described at /docs. Every option can be set in the environment: TENURE_ and
    its name. Without a URL, FDB_CLUSTER_FILE names the FoundationDB cluster that has the jobs.

    \b
    Example:
      tenure serve --port 3100 --tokens tenure-tokens.json
    """
    # To import what serves takes longer than most commands run.
    from tenure.server.hosting import host_until_told

    log_as(log_format, log_level)
    known = tokens_of(tokens, os.environ)
    refuse_strangers(host, known)
    named = [name.strip() for name in dialects.split(",") if name.strip()]
    if demo and tasks is not None:
        raise InvalidInput("demo", "the tasks are its own: leave --workers-in-process out")
    tasks = demonstration if demo else tasks
    holder = tasks or Tenure()
    holder.move_to(app.url or named_cluster(os.environ))
    with holder:
        if demo:
            next_round.enqueue()
        host_until_told(
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
        )
    app.answer({"served": True}, lambda: words("The service has stopped."))


def named_cluster(environ: Mapping[str, str]) -> str | None:
    """The store that the variable of FoundationDB's own tools names, if ours names none."""
    named = environ.get("FDB_CLUSTER_FILE")
    if not named or "TENURE_URL" in environ:
        return None
    return f"fdb://{quote(str(Path(named).absolute()))}"


def hosts_of(given: str | None, host: str, tokens: Tokens) -> list[str] | None:
    """The names under which the service may be reached; None for any. Without tokens a web page
    that reaches it by a name of its own could do everything."""
    if given is None:
        return None if tokens.required else [*LOOPBACK, host]
    names = [name.strip() for name in given.split(",") if name.strip()]
    if not names:
        raise InvalidInput("allowed-hosts", "name at least one host, or * for any")
    return None if "*" in names else names


def refuse_strangers(host: str, tokens: Tokens) -> None:
    """Without tokens, everybody may do everything: then only this machine is listened to."""
    if not tokens.required and not is_loopback(host):
        raise InvalidInput(
            "host",
            f"{host} can be reached by others, and no tokens are set: make one with "
            f"`tenure token create`, or listen on 127.0.0.1",
        )


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


file_option = click.option(
    "--file",
    type=click.Path(dir_okay=False, path_type=Path),
    default=TOKENS,
    show_default=True,
    envvar="TENURE_TOKENS",
    help="Where they are kept, as hashes.",
)


@click.group()
@json_option
def token() -> None:
    """Make, list and revoke the tokens of a service.

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
    help="What it is good for; repeatable.",
)
@click.option("--queue", "queues", multiple=True, help="Only this queue; repeatable.")
@click.option("--tenant", "tenants", multiple=True, help="Only this tenant; repeatable.")
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
    """Make a token. It is shown once, and kept nowhere.

    \b
    Example:
      tenure token create worker --scope work --queue mail
    """
    secret = create_token(file, name, scopes, queues, tenants)
    app.answer({"name": name, "token": secret}, lambda: words(secret))
    if not app.as_json:
        click.echo(f"Added to {file}; a running service notices within seconds.", err=True)


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
    """Remove a token.

    \b
    Example:
      tenure token revoke web
    """
    revoke_token(file, name)
    app.answer(
        {"revoked": name},
        lambda: words(f"Token {name} is revoked; a running service notices within seconds."),
    )
