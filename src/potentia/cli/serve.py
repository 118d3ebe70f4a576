"""``potentia serve``: the report's pages live, while studies run."""

from __future__ import annotations

from typing import Annotated

import typer

from potentia.cli.app import app
from potentia.cli.output import console
from potentia.errors import MissingExtraError, without_password


@app.command()
def serve(
    store: Annotated[str, typer.Argument(metavar="STORE", help="SQLite file or database URL.")] = "potentia.db",
    host: Annotated[str, typer.Option(help="Address to listen on; any but loopback asks for a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8765,
    token: Annotated[
        str | None, typer.Option(envvar="POTENTIA_TOKEN", help="Token to ask for; made up where one is needed.")
    ] = None,
    history: Annotated[
        list[str] | None, typer.Option(help="Cells not measured yet: predict them with these scores of other models.")
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the board in a browser.")] = False,
) -> None:
    """Show running and finished studies in a browser: rows, lanes, curves, costs, failures, and every finding.

    The board only reads. On 127.0.0.1 it needs no token; on any other address nothing is served without one.

    Examples:
      potentia serve potentia.db

      potentia serve postgresql+psycopg://user@host/potentia --host 0.0.0.0 --token "$TOKEN"
    """
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("the live board needs FastAPI", hint="pip install 'potentia[web]'") from error
    from potentia.show.board.app import address, bind, choose_token
    from potentia.show.board.app import serve as run_server
    from potentia.store import Store

    Store.open(store, readonly=True).close()  # say at once what is wrong with it
    if history:
        from potentia.evidence import read

        read(*history)
    asked = choose_token(host, token)
    listener = bind(host, port)
    place = address(host, listener.getsockname()[1], asked)
    shown = address(host, listener.getsockname()[1], None) if token is not None else place  # a given one is known
    given = " (it asks for the token you gave)" if token is not None else ""
    console.print(f"the board of {without_password(store)} is at {shown}{given}", soft_wrap=True, markup=False)
    console.print("it only reads; Ctrl-C stops it", style="dim")
    if open_browser:
        typer.launch(place)
    run_server(store, listener, token=asked, history=tuple(history or ()))
