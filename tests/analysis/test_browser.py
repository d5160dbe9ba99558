"""The page in Chromium: it opens from disk without a complaint, sorts, filters, hovers, links, prints,
and fits three widths in light and in dark."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headcount.analysis import report
from headcount.study.records import Record
from headcount.study.store import Study

from .browser import CHROMIUM, DRIVER, Browser
from .conftest import TRUTH, layout_of, make_cost, make_record, write_metrics

pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver (Debian: chromium-driver)"
)


def big_records() -> list[Record]:
    """2,000 runs: 9 layouts at 4 depths, about 55 seeds each; some diverged."""
    records = []
    for depth in (2, 3, 4, 5):
        for (n_heads, n_kv), mean in TRUTH.items():
            layout = layout_of(n_heads, n_kv)
            cost = make_cost(layout, n_layers=depth)
            for seed in range(56):
                wiggle = ((seed * 7919 + n_heads * 31) % 97) / 5000
                lost = seed % 40 == 39
                records.append(
                    make_record(
                        layout,
                        seed,
                        None if lost else mean - depth / 20 + wiggle,
                        status="diverged" if lost else "completed",
                        cost=cost,
                        model__n_layers=depth,
                    )
                )
    return records[:2000]


@pytest.fixture(scope="module")
def big_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    study = Study(tmp_path_factory.mktemp("big") / "big")
    for record in big_records():
        folder = study.run_folder(record.run_id)
        folder.mkdir(parents=True)
        (folder / "record.json").write_text(record.model_dump_json(by_alias=True))
        if record.status == "completed":
            write_metrics(study, record, steps=50)
    return report.build(study)


@pytest.fixture
def novel_page(novel_report: Study) -> Path:
    return novel_report.report / "index.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as window:
        yield window


FIRST_FIGURE = "document.querySelector('.plot')"


def draw_first(browser: Browser) -> None:
    """Figures are drawn when they come near the window."""
    browser.run(f"{FIRST_FIGURE}.scrollIntoView()")
    browser.wait(f"{FIRST_FIGURE}.querySelector('.main-svg')")


def test_two_thousand_runs(big_page: Path, browser: Browser) -> None:
    assert big_page.stat().st_size < 8e6
    browser.open(big_page)
    draw_first(browser)
    assert browser.errors == []
    assert browser.run("return document.querySelectorAll('#runs-table tbody tr').length") == 2000
    # Four depths, four chapters, and a map of who wins where.
    assert browser.run("return document.querySelectorAll('.map td a').length") == 4


def test_every_figure_draws(big_page: Path, browser: Browser) -> None:
    browser.open(big_page)
    browser.run("document.querySelectorAll('.plot').forEach((p) => p.scrollIntoView())")
    browser.run("dispatchEvent(new Event('beforeprint')); dispatchEvent(new Event('afterprint'))")
    browser.wait(
        "[...document.querySelectorAll('.plot')].every((p) => p.querySelector('.main-svg'))"
    )
    assert browser.errors == []


def column(browser: Browser, table: str, place: int) -> list[str]:
    return browser.run(
        "return [...document.getElementById(arguments[0]).tBodies[0].rows]"
        ".filter((r) => !r.hidden).map((r) => r.cells[arguments[1]].textContent.trim())",
        table,
        place,
    )


def test_sorting(novel_page: Path, browser: Browser) -> None:
    browser.open(novel_page)
    browser.run("document.querySelectorAll('#layouts-0 th button')[2].click()")
    losses = [float(t.split()[0]) for t in column(browser, "layouts-0", 2)]
    assert losses == sorted(losses)
    browser.run("document.querySelectorAll('#layouts-0 th button')[2].click()")
    assert column(browser, "layouts-0", 0)[0] == "mha h16"
    state = browser.run(
        "return document.querySelectorAll('#layouts-0 thead th')[2].getAttribute('aria-sort')"
    )
    assert state == "descending"
    # KV bytes sort by size, not by their text.
    browser.run("document.querySelectorAll('#layouts-0 th button')[7].click()")
    assert column(browser, "layouts-0", 7)[0] == "128 B"
    assert column(browser, "layouts-0", 7)[-1] == "1 KiB"


def test_sorting_by_keyboard(novel_page: Path, browser: Browser) -> None:
    browser.open(novel_page)
    browser.run("document.querySelectorAll('#runs-table th button')[0].focus()")
    browser.keys("\ue004\ue007")  # Tab to the second column, Enter
    browser.wait("document.querySelectorAll('#runs-table th')[1].hasAttribute('aria-sort')")


def test_filtering(big_page: Path, browser: Browser) -> None:
    browser.open(big_page)
    browser.run("document.querySelector('input[data-table=runs-table]').focus()")
    browser.keys("diverged gqa")
    browser.wait("document.querySelector('output[for=runs-table]').textContent !== ''")
    labels = column(browser, "runs-table", 2)
    assert labels
    assert all("gqa" in label for label in labels)
    shown = browser.run("return document.querySelector('output[for=runs-table]').textContent")
    assert shown == f"{len(labels)} of 2000"


def test_hovering_tells_the_layout(novel_page: Path, browser: Browser) -> None:
    browser.open(novel_page, height=1000)
    browser.run("document.getElementById('c0-quality_vs_decode_latency').scrollIntoView()")
    browser.wait("document.querySelector('#c0-quality_vs_decode_latency .points path')")
    # The last point of a layout's trace: the first trace with symbols is MHA's.
    at = browser.run(
        "const r = [...document.querySelectorAll("
        "'#c0-quality_vs_decode_latency .points path')].at(-1).getBoundingClientRect();"
        "return [r.x + r.width / 2, r.y + r.height / 2]"
    )
    browser.hover(*at)
    browser.wait("document.querySelector('#c0-quality_vs_decode_latency .hovertext')")
    text = browser.run(
        "return document.querySelector('#c0-quality_vs_decode_latency .hovertext').textContent"
    )
    assert re.search(r"(mha|gqa|mqa|single) h\d+", text)
    assert "on this front in" in text


def test_figures_read_as_text(novel_page: Path, browser: Browser) -> None:
    browser.open(novel_page)
    browser.run("document.querySelector('details.text').open = true")
    browser.wait("document.querySelector('details.text li')")
    text = browser.run("return document.querySelector('details.text').textContent")
    assert "mha h16" in text


def test_every_link_leads_somewhere(novel_page: Path, browser: Browser) -> None:
    browser.open(novel_page)
    links = browser.run("return [...document.links].map((a) => a.getAttribute('href'))")
    assert len(links) > 40
    for link in links:
        if link.startswith("#"):
            assert browser.run("return Boolean(document.getElementById(arguments[0]))", link[1:])
        else:
            assert (novel_page.parent / link).exists(), link


def test_nothing_is_fetched(novel_page: Path, browser: Browser) -> None:
    browser.open(novel_page)
    draw_first(browser)
    fetched = browser.run("return performance.getEntriesByType('resource').map((e) => e.name)")
    assert [name for name in fetched if not name.startswith("data:")] == []


def test_printing(novel_page: Path, browser: Browser) -> None:
    browser.open(novel_page)
    assert browser.print_pdf().startswith(b"%PDF")
    assert browser.errors == []


@pytest.mark.parametrize("dark", [False, True])
def test_three_widths(novel_page: Path, dark: bool, tmp_path: Path) -> None:
    with Browser(dark=dark) as window:
        for width in (1280, 768, 400):
            window.open(novel_page, width)
            draw_first(window)
            # Wide tables scroll in their own frame; the page never does.
            assert window.run("return document.documentElement.scrollWidth <= innerWidth")
            shade = window.run("return getComputedStyle(document.body).backgroundColor")
            assert (sum(map(int, re.findall(r"\d+", shade)[:3])) < 200) == dark
            ink = window.run(
                "return getComputedStyle(document.querySelector('.plot .xtitle')).fill"
            )
            assert (sum(map(int, re.findall(r"\d+", ink)[:3])) > 500) == dark
            window.screenshot(tmp_path / f"{width}-{'dark' if dark else 'light'}.png")
        assert window.errors == []


def test_empty_study(make_study: Callable[..., Study], browser: Browser) -> None:
    browser.open(report.build(make_study([])))
    assert browser.errors == []
    assert "nothing to compare" in browser.run("return document.body.textContent")
