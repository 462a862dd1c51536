from __future__ import annotations

import base64
import hashlib
import re

from asyncrl.tools.report.page import Charts, Page, axis_switch, code, details, line, numbers, table

AXES = {"steps": "steps"}
HOSTILE = "</script><img src=x onerror=alert(1)>"


def drawn(*lines: dict[str, object]) -> tuple[str, Charts]:
    charts = Charts(AXES)
    charts.positions({"steps": [0, 1]})
    return charts.figure(HOSTILE, list(lines), note=HOSTILE), charts


def whole_page() -> str:
    figure, charts = drawn(line(HOSTILE, 0, [1.0, 2.0]))
    cells = [[HOSTILE, 1.0]]
    parts = [table([HOSTILE, "b"], cells), numbers({HOSTILE: HOSTILE}), code(HOSTILE)]
    body = figure + "".join(parts) + details("more", code(HOSTILE)) + axis_switch(AXES, "wall_s")
    return Page(HOSTILE, body, charts.data).html()


def test_texts_are_shown_and_not_run() -> None:
    html = whole_page()
    assert "<img" not in html
    assert html.count("</script>") == 2  # of the data, and of the program
    assert html.count("&lt;img src=x") >= 9


def test_browser_runs_exactly_the_script_and_style_of_the_page() -> None:
    html = whole_page()
    policy = re.search(r'Security-Policy content="([^"]*)"', html)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; ")
    for element in ("script", "style"):
        content = re.search(rf"<{element}>(.*?)</{element}>", html, re.DOTALL)
        assert content is not None
        digest = base64.b64encode(hashlib.sha256(content[1].encode()).digest()).decode()
        assert f"{element}-src 'sha256-{digest}'" in policy[1]


def test_page_loads_nothing() -> None:
    markup = re.sub(r"<(script|style).*?</\1>", "", whole_page(), flags=re.DOTALL)
    assert not re.search(r"(src|href|action)=|url\(|@import", markup.replace("&lt;img src", ""))
