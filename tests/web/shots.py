"""Screenshots of every view, of a gateway that looks used: `python -m tests.web.shots [folder]`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from tests.web.browser import DESK, PHONE, Person, find_chromium, settle
from tests.web.gateways import GatewayProcess
from tests.web.used import places, used_gateway

FOLDER = Path(__file__).parents[2] / "shots"


def shoot(chromium: Browser, gateway: GatewayProcess, folder: Path) -> None:
    """Write each view, light and dark, wide and narrow."""
    looks: dict[str, dict[str, Any]] = {
        "light": {"size": DESK},
        "dark": {"size": DESK, "scheme": "dark"},
        "phone": {"size": PHONE},
        "phone-dark": {"size": PHONE, "scheme": "dark"},
    }
    for look, options in looks.items():
        person = Person(chromium, gateway, token=gateway.token, **options)
        for name, place in places(gateway).items():
            page = person.open(place)
            settle(page)
            page.screenshot(path=folder / f"{name}-{look}.png")
            page.close()
        stranger = Person(chromium, gateway, **options)
        page = stranger.open()
        page.get_by_label("Token").wait_for()
        page.screenshot(path=folder / f"login-{look}.png")
        for one in (person, stranger):
            one.leave()
        print(f"{look}: {len(places(gateway)) + 1} views", flush=True)


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    print("Letting a day pass in a gateway ...", flush=True)
    with (
        tempfile.TemporaryDirectory() as home,
        sync_playwright() as playwright,
        used_gateway(Path(home), pace=1) as gateway,
    ):
        shoot(playwright.chromium.launch(executable_path=find_chromium()), gateway, folder)
    print(f"They are in {folder}")


if __name__ == "__main__":
    main()
