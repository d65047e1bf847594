"""Risk: the dashboard shows figures that are not the server's, hides trouble, or breaks when figures are missing."""

import time

import pytest
from test_web_safety import CONTRAST, NAMELESS


def figures(now):
    request = {"route": "/v1/chat/completions", "prompt_tokens": 1200, "cached_tokens": 1024, "tokens": 80}
    return {
        "model": "mock-7b", "started": now - 7384, "now": now, "ready": True, "state": "ready",
        "requests": {"running": 3, "waiting": 2, "slots": 8}, "tokens_per_s": {"prompt": 812.4, "generated": 184.2},
        "ttft": {"p50": 0.212, "p90": 0.84, "p99": 2.31}, "itl": {"p50": 0.0213, "p90": 0.0287, "p99": 0.0602},
        "kv": {"used": 3 << 30, "total": 4 << 30}, "checkpoints": {"count": 12, "bytes": 1 << 29, "budget": 1 << 30},
        "cache": {"hit_tokens": 900, "query_tokens": 1200, "misses": {"new_prefix": 7, "evicted": 2, "none": 0}},
        "recent": [request | {"id": "chatcmpl-b", "start": now - 2, "queue_s": 0.0, "prefill_s": 0.5, "decode_s": 1.5, "finish": None},
                   request | {"id": "<img src=x onerror=window.hacked=1>", "start": now - 9, "queue_s": 1.0, "prefill_s": 1.0, "decode_s": 2.0, "finish": "stop"}],
        "errors": [{"time": now - 5, "status": 400, "message": "<script>window.hacked=1</script> expected a string", "id": "req-7"}],
    }


@pytest.fixture
def page(browser, mock):
    mock.dashboard = figures(time.time())
    tab = browser.page(mock.url + "dashboard", height=1400)
    tab.wait("document.querySelector('#state').textContent === 'ready'")
    yield tab
    assert tab.complaints() == [] and tab.js("window.hacked") is None
    tab.close()


def value(page, element):
    return page.js(f"document.getElementById('{element}').textContent")


def test_every_figure_is_shown(page, shot):
    shown = {name: value(page, name) for name in ("now-generated", "now-prompt", "now-running", "now-slots", "now-waiting", "now-ttft", "now-cache",
                                                  "ttft-p90", "ttft-p99", "itl-p50", "itl-p99", "model", "uptime")}
    assert shown == {"now-generated": "184", "now-prompt": "812", "now-running": "3", "now-slots": "of 8 at once", "now-waiting": "2",
                     "now-ttft": "212 ms", "now-cache": "75.0 %", "ttft-p90": "840 ms", "ttft-p99": "2.31 s", "itl-p50": "21 ms", "itl-p99": "60 ms",
                     "model": "mock-7b", "uptime": "up 2 h 3 min"}
    memory = page.js("[...document.querySelectorAll('#memory [role=meter]')].map(e => e.getAttribute('aria-label') + ': ' + e.getAttribute('aria-valuetext'))")
    assert memory == ["Keys and values: 3.0 GiB of 4.0 GiB", "Checkpoints: 512 MiB of 1.0 GiB"]
    assert page.js("document.querySelector('.reasons').innerText.split('\\n')") == ["new prefix", "7", "evicted", "2"]
    assert "expected a string" in value(page, "errors") and "400" in value(page, "errors")
    assert page.js(CONTRAST) == [] and page.js(NAMELESS) == []
    shot(page, "dashboard")


def test_the_waterfall_has_the_parts_of_every_request(page):
    parts = """[...document.querySelectorAll('.waterfall tbody tr')].map(r => [...r.querySelectorAll('.part')].map(p => {
        const box = p.parentElement.getBoundingClientRect(), own = p.getBoundingClientRect();
        return [p.className, Math.round(100 * (own.left - box.left) / box.width), Math.round(100 * own.width / box.width)]; }))"""
    expected = [[("part prefill", 0, 12.5), ("part decode", 12.5, 37.5)], [("part queue", 0, 25), ("part prefill", 25, 25), ("part decode", 50, 50)]]
    for row, wanted in zip(page.js(parts), expected, strict=True):
        for (name, left, width), (wanted_name, wanted_left, wanted_width) in zip(row, wanted, strict=True):
            assert name == wanted_name and abs(left - wanted_left) <= 1.5 and abs(width - wanted_width) <= 1.5
    assert page.js("[...document.querySelectorAll('.finish')].map(e => e.textContent)") == ["running", "stop"]
    page.click("#by-time")
    page.wait(f"({parts})[0][0][1] > 50")    # the later request is to the right
    assert page.js("document.querySelector('#by-time').getAttribute('aria-pressed')") == "true"


def test_figures_move_every_second(page, mock):
    before = page.js("document.querySelector('#chart-generated .line.generated').getAttribute('d')")
    mock.dashboard = figures(time.time()) | {"tokens_per_s": {"prompt": 0, "generated": 250}}
    page.wait("document.getElementById('now-generated').textContent === '250'")
    page.wait("document.querySelector('#chart-generated .line').getAttribute('d').includes('L')")
    assert page.js("document.querySelector('#chart-generated .line').getAttribute('d')") != before
    assert page.js("document.querySelector('#chart-generated').getAttribute('aria-label')") == "Generated tokens per second, now: generated 250"


def test_what_was_not_measured_is_a_dash(page, mock):
    mock.dashboard = {"model": "mock-7b", "ready": False, "state": "loading", "ttft": {"p50": None}, "requests": {}, "kv": {"used": None, "total": None}, "recent": [{"id": 1}], "cache": None}
    page.wait("document.querySelector('#state').textContent === 'loading'")
    assert [value(page, name) for name in ("now-generated", "now-running", "now-ttft", "now-cache", "ttft-p50", "itl-p99")] == ["–"] * 6
    mock.dashboard = {}
    page.wait("document.querySelector('#recent').textContent === 'No requests yet.'")


def test_a_server_that_is_away_is_said_and_found_again(page, mock):
    mock.stop()
    page.wait("document.querySelector('#state').textContent === 'not reachable' && document.body.classList.contains('stale')")
    mock.start()
    page.wait("document.querySelector('#state').textContent === 'ready' && !document.body.classList.contains('stale')")


def test_a_key_is_asked_for(browser, mock):
    mock.key, mock.dashboard = "s3cret", figures(time.time())
    page = browser.page(mock.url + "dashboard")
    page.wait("document.activeElement.id === 'key'")
    page.type("wrong")
    page.key("Enter")
    page.wait("document.querySelector('#key-error').textContent === 'The server did not accept the API key.'")
    page.js("document.querySelector('#key').select()")
    page.type("s3cret")
    page.key("Enter")
    page.wait("document.querySelector('#state').textContent === 'ready' && document.querySelector('#key-form').hidden")
    page.close()


@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_phone(browser, mock, shot, dark):
    mock.dashboard = figures(time.time())
    page = browser.page(mock.url + "dashboard", width=390, height=844, phone=True, dark=dark)
    page.wait("document.querySelector('.waterfall')")
    assert page.js("document.documentElement.scrollWidth") <= 390
    assert page.js(CONTRAST) == []
    shot(page, f"dashboard_phone{'_dark' if dark else ''}")
    page.close()
