"""Whether the user has set W&B up, from the variables and files that W&B reads; without its slow import."""

from __future__ import annotations

import netrc
import os
from configparser import ConfigParser, Error
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

_HOST = "https://api.wandb.ai"


def configured_mode() -> str | None:
    """Return the mode of ``WANDB_MODE``, else of ``wandb offline`` or ``wandb disabled``, else ``online`` if there is
    a key; None if W&B is not set up.

    A key is in ``WANDB_API_KEY``, in the netrc file or in W&B's settings file (``wandb login``).
    """
    settings = _read_settings()
    if mode := os.environ.get("WANDB_MODE") or settings.get("mode"):
        return {"dryrun": "offline", "run": "online"}.get(mode, mode)
    host = os.environ.get("WANDB_BASE_URL") or settings.get("base_url") or _HOST
    has_key = os.environ.get("WANDB_API_KEY") or settings.get("api_key") or _has_login(urlsplit(host).netloc)
    return "online" if has_key else None


def _read_settings() -> dict[str, str]:
    """Return what the user's settings file and that of this folder say, the folder's last."""
    home = Path(os.environ.get("WANDB_CONFIG_DIR") or os.path.expanduser("~/.config/wandb"))
    parser = ConfigParser(interpolation=None)
    with suppress(Error, OSError, UnicodeDecodeError):
        parser.read([home / "settings", Path(os.environ.get("WANDB_DIR") or ".") / "wandb" / "settings"])
    return dict(parser["default"]) if parser.has_section("default") else {}


def _has_login(host: str) -> bool:
    given = os.environ.get("NETRC")
    for file in [given] if given else ["~/.netrc", "~/_netrc"]:
        with suppress(netrc.NetrcParseError, OSError, UnicodeDecodeError):
            if netrc.netrc(os.path.expanduser(file)).authenticators(host):
                return True
    return False
