"""Risk: the pages work against a mock alone: the server that ships them sends other files, headers or events."""

import pytest
from test_serve import Serve
from test_web import IDLE, last, say


@pytest.fixture(scope="module")
def server(binary, smollm2):
    with Serve(binary, smollm2, "--ctx", 1024) as served:
        yield served


def test_a_person_gets_answers(browser, server, shot):
    page = browser.page(f"http://127.0.0.1:{server.port}/")
    page.wait("document.querySelector('#model-name').textContent.startsWith('SmolLM2')")
    page.click("#open-settings")
    page.wait("document.querySelector('dialog').open")
    for name, value in {"temperature": "0", "max_tokens": "24"}.items():
        page.js(f"document.querySelector('#set-{name}').select(); document.querySelector('#set-{name}').focus()")
        page.type(value)
    page.key("Escape")
    page.wait("!document.querySelector('dialog').open")
    say(page, "What is the capital of France?")
    assert "Paris" in last(page, ".answer")
    stats = last(page, ".stats")  # without a rate where seven tokens took less than 0.1 s
    assert "TTFT" in stats and " tokens" in stats and "prompt " in stats
    say(page, "And of Italy?")
    assert "Rome" in last(page, ".answer")
    cached = last(page, ".stats").split(" cached")[0].split()[-1]
    assert int(cached) > 20, f"the first turn was read again: {last(page, '.stats')}"
    assert page.js(f"{IDLE} && document.querySelectorAll('.answer').length") == 2
    assert all(url.startswith((f"http://127.0.0.1:{server.port}/", "data:")) for url in page.requests())
    shot(page, "served")
    assert page.complaints() == []
    page.close()


def test_the_dashboard_shows_this_server(browser, server, shot):
    page = browser.page(f"http://127.0.0.1:{server.port}/dashboard")
    page.wait("document.querySelector('#state').textContent === 'ready'")
    assert page.js("document.querySelector('#model').textContent").startswith("SmolLM2")
    assert page.js("document.querySelector('#now-slots').textContent") == "of 2 at once"
    shot(page, "served-dashboard")
    assert page.complaints() == []
    page.close()
