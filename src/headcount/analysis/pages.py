"""Self-contained pages: one look, one behaviour, and the figures' library, all in the file."""

import datetime
import json
from importlib import resources
from typing import Any

from headcount import __version__


def render(package: str, template: str, specs: dict[str, Any], **values: Any) -> str:
    """The HTML of a template in the package's folder `page`. specs: the figures, by their element."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from plotly.offline import get_plotlyjs

    environment = Environment(
        loader=PackageLoader(package, "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    look = resources.files("headcount.analysis") / "page"
    return environment.get_template(template).render(
        written=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        version=__version__,
        # "<" would end the script element that holds them.
        specs=json.dumps(specs, separators=(",", ":")).replace("<", "\\u003c"),
        style=(look / "page.css").read_text(encoding="utf-8"),
        script=(look / "page.js").read_text(encoding="utf-8"),
        plotly=get_plotlyjs() if specs else "",
        **values,
    )
