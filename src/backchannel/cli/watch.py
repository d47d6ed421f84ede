"""`backchannel watch`: sessions, runs and deliveries as they are now, in one picture that one leaves open."""

from __future__ import annotations

import typer

from backchannel.cli.live import is_drawn, keep_watching
from backchannel.cli.options import AsJson, options_of
from backchannel.cli.overview import Overview
from backchannel.cli.watch_lines import Changes
from backchannel.cli.watch_screen import Board


def watch(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Watch sessions, runs and deliveries until Ctrl-C. Piped, or with --json, a line for each change."""
    options = options_of(ctx)
    if is_drawn(as_json=as_json):
        keep_watching(options, Overview(), Board(options))
    else:
        keep_watching(options, Overview(is_every_end_told=True), Changes(as_json=as_json))
