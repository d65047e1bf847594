"""Risk: the chat page loses what a person wrote or what the model said, shows it wrongly, or cannot be worked with."""

import json
import time

import pytest
from browser import CTRL, SHIFT
from web_mock import CUT, Error, Finish, Hold, Usage, text

IDLE = "!document.body.classList.contains('busy')"
DONE = [Finish(), Usage(20, 10)]


@pytest.fixture
def page(browser, mock):
    tab = browser.page(mock.url)
    tab.wait("document.querySelector('#model-name').textContent === 'mock-7b'")
    yield tab
    assert tab.complaints() == []
    tab.close()


def say(page, words, wait=True):
    page.click("#input")
    page.type(words)
    page.key("Enter")
    if wait:
        page.wait(IDLE + f" && [...document.querySelectorAll('.user-text')].some(e => e.textContent === {json.dumps(words)})")


def last(page, selector):
    return page.js(f"[...document.querySelectorAll('.assistant')].at(-1).querySelector({json.dumps(selector)})?.innerText")


def users(page):
    return page.js("[...document.querySelectorAll('.user-text')].map(e => e.textContent)")


def answers(page):
    return page.js("[...document.querySelectorAll('.answer')].map(e => e.innerText.trim())")


def test_a_streamed_answer_is_markdown_and_grows_in_place(page, mock, shot):
    hold = Hold()
    mock.answers.append([*text("# Title\n\nFirst **bo", "ld** word.\n\n```py", "thon\ndef f():\n"), hold,
                         *text("    return 1\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n- x\n- y"), Finish(), Usage(1234, 40, 1000)])
    say(page, "Hello", wait=False)
    assert hold.reached.wait(10)
    page.wait("document.querySelector('.code-block .line:nth-child(2)')")
    # Nodes that are on the screen stay the same ones: no flicker, a selection stays.
    page.js("""for (const s of ['.answer h1', '.answer strong', '.code-block', '.code-block .line'])
                   document.querySelector(s).mark = true""")
    page.js("getSelection().selectAllChildren(document.querySelector('.answer h1'))")
    time.sleep(0.2)  # over less than 0.1 s the page shows no rate
    hold.go.set()
    page.wait(IDLE)
    assert page.js("['.answer h1', '.answer strong', '.code-block', '.code-block .line'].every(s => document.querySelector(s).mark)")
    assert page.js("String(getSelection())") == "Title"
    assert page.js("document.querySelector('.answer strong').textContent") == "bold"
    assert page.js("document.querySelector('.code-block code').textContent") == "def f():\n    return 1"
    assert page.js("document.querySelector('.hl-keyword').textContent") == "def"
    assert page.js("[...document.querySelectorAll('.answer td')].map(e => e.textContent)") == ["1", "2"]
    assert page.js("document.querySelectorAll('.answer li').length") == 2
    stats = last(page, ".stats")
    assert "TTFT" in stats and "tok/s" in stats and "40 tokens" in stats and "prompt 1,234 · 1,000 cached" in stats
    assert page.js("document.querySelector('#context-text').textContent") == "1,274 of 8,192 tokens"
    assert mock.requests[0]["messages"] == [{"role": "user", "content": "Hello"}]
    assert mock.requests[0]["stream"] is True and mock.requests[0]["stream_options"] == {"include_usage": True}
    shot(page, "light")


def test_the_next_question_carries_the_conversation(page, mock):
    mock.answers += [[*text("one"), *DONE], [*text("two"), *DONE]]
    say(page, "first")
    say(page, "second")
    assert [(m["role"], m["content"]) for m in mock.requests[1]["messages"]] == [("user", "first"), ("assistant", "one"), ("user", "second")]


def test_stop_ends_the_request_and_keeps_what_came(page, mock):
    for way in ("click", "Escape"):
        hold = Hold()
        mock.answers.append([*text("Half an ans"), hold, *text("never"), *DONE])
        mock.gone.clear()
        say(page, f"stop by {way}", wait=False)
        page.wait("[...document.querySelectorAll('.answer')].at(-1)?.innerText.includes('Half an ans')")
        page.click("#send") if way == "click" else page.key("Escape")
        page.wait(IDLE)
        assert mock.gone.wait(10), "the server was not told"
        hold.go.set()
        assert last(page, ".answer").strip() == "Half an ans"
        assert last(page, ".notice") == "Stopped."
    say(page, "go on")
    assert mock.requests[-1]["messages"][1] == {"role": "assistant", "content": "Half an ans"}


def test_editing_and_regenerating_make_versions(page, mock):
    mock.answers += [[*text(f"answer {i}"), *DONE] for i in range(1, 5)]
    say(page, "question")
    page.click(".user [aria-label=Edit]")
    page.wait("document.activeElement.matches('.edit-area')")
    page.js("document.activeElement.select()")
    page.type("better question")
    page.key("Enter")
    page.wait(IDLE + " && document.querySelector('.user-text')?.textContent === 'better question'")
    assert answers(page) == ["answer 2"] and page.js("document.querySelector('.user .branch').innerText").split() == ["2/2"]
    page.click(".assistant [aria-label=Regenerate]")
    page.wait(IDLE + " && document.querySelector('.answer').innerText.trim() === 'answer 3'")
    assert mock.requests[2]["messages"] == [{"role": "user", "content": "better question"}]
    assert last(page, ".branch").split() == ["2/2"]
    page.click(".assistant [aria-label='Previous version']")
    assert answers(page) == ["answer 2"]
    say(page, "below the first version")
    assert [m["content"] for m in mock.requests[3]["messages"]] == ["better question", "answer 2", "below the first version"]
    page.click(".user [aria-label='Previous version']")
    assert users(page) == ["question"] and answers(page) == ["answer 1"]
    page.reload()
    page.wait("document.querySelector('.answer')")
    assert users(page) == ["question"], "the chosen version is remembered"
    page.click(".user [aria-label='Next version']")
    assert users(page) == ["better question", "below the first version"] and answers(page) == ["answer 2", "answer 4"]


def test_reasoning_is_open_while_it_streams_and_folded_after(page, mock):
    holds = [Hold(), Hold()]
    mock.answers.append([{"reasoning_content": "Let me *think*"}, holds[0], *text("The answer"), holds[1], *text("."), *DONE])
    say(page, "why", wait=False)
    page.wait("document.querySelector('.reasoning[open]')?.innerText.includes('Let me think')")
    assert page.js("document.querySelector('.reasoning-title').textContent") == "Thinking…"
    holds[0].go.set()
    page.wait("!document.querySelector('.reasoning').open && document.querySelector('.answer').innerText.includes('The answer')")
    page.click(".reasoning summary")
    page.wait("document.querySelector('.reasoning').open")
    holds[1].go.set()
    page.wait(IDLE)
    assert page.js("document.querySelector('.reasoning').open"), "opened by hand it stays open"
    assert page.js("document.querySelector('.reasoning-title').textContent").startswith("Thought")
    say(page, "and?")
    assert mock.requests[1]["messages"][1] == {"role": "assistant", "content": "The answer.", "reasoning_content": "Let me *think*"}


def test_a_tool_call_is_a_card_and_its_result_goes_back(page, mock, shot):
    hold = Hold()
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": ""}}
    mock.answers.append([*text("I look."), {"tool_calls": [call]}, {"tool_calls": [{"index": 0, "function": {"arguments": '{"city":'}}]}, hold,
                         {"tool_calls": [{"index": 0, "function": {"arguments": ' "Berlin"}'}}]}, Finish("tool_calls"), Usage(9, 9)])
    mock.answers.append([*text("It is sunny."), *DONE])
    say(page, "weather?", wait=False)
    page.wait("document.querySelector('.tool-card')?.dataset.state === 'writing' && document.querySelector('.tool-card code').textContent.includes('city')")
    hold.go.set()
    page.wait("document.querySelector('.tool-card').dataset.state === 'waiting'")
    assert page.js("document.querySelector('.tool-name').textContent") == "get_weather"
    assert page.js("document.querySelector('.tool-card code').textContent") == '{\n  "city": "Berlin"\n}'
    shot(page, "tool")
    page.click(".tool-give textarea")
    page.type('{"sky": "clear"}')
    page.click(".tool-give button")
    page.wait(IDLE + " && document.querySelectorAll('.assistant').length === 2")
    assert answers(page) == ["I look.", "It is sunny."]
    assert page.js("document.querySelector('.tool-card').dataset.state") == "answered"
    assert mock.requests[1]["messages"][1:] == [
        {"role": "assistant", "content": "I look.", "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Berlin"}'}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": '{"sky": "clear"}'}]


def test_conversations_survive_a_reload_also_in_mid_answer(page, mock):
    hold = Hold()
    mock.answers += [[*text("kept **answer**"), Finish(), Usage(50, 7, 30)], [*text("cut off he"), hold, *DONE]]
    say(page, "remember me")
    page.reload()
    page.wait("document.querySelector('.answer strong')")
    assert users(page) == ["remember me"] and answers(page) == ["kept answer"]
    assert "prompt 50 · 30 cached" in last(page, ".stats")
    say(page, "again", wait=False)
    page.wait("[...document.querySelectorAll('.answer')].at(-1).innerText.includes('cut off he')")
    page.wait("""new Promise(resolve => { const r = indexedDB.open('sparkinfer'); r.onsuccess = () => {
        const all = r.result.transaction('conversations').objectStore('conversations').getAll();
        all.onsuccess = () => resolve(JSON.stringify(all.result).includes('cut off he')); }; })""")
    page.reload()
    hold.go.set()
    page.wait("document.querySelectorAll('.assistant').length === 2")
    assert last(page, ".answer").strip() == "cut off he"
    assert last(page, ".notice") == "The page was closed before the answer was complete."


def test_the_list_searches_renames_deletes_and_brings_back(page, mock):
    mock.answers += [[*text("about apples"), *DONE], [*text("about pears"), *DONE]]
    say(page, "first topic")
    page.click("#new-chat")
    say(page, "second topic")
    titles = "[...document.querySelectorAll('.entry-title')].map(e => e.textContent)"
    page.wait(f"({titles}).length === 2")
    assert page.js(titles) == ["second topic", "first topic"]
    page.click("#search")
    page.type("apples")
    page.wait(f"({titles}).join() === 'first topic'")
    page.key("Escape")
    page.wait(f"({titles}).length === 2")
    page.click("[aria-label='Rename second topic']")
    page.wait("document.activeElement.matches('.entry input')")
    page.js("document.activeElement.select()")
    page.type("Pears & <b>more</b>")
    page.key("Enter")
    page.wait(f"({titles})[0] === 'Pears & <b>more</b>'")
    page.reload()
    page.wait(f"({titles})[0] === 'Pears & <b>more</b>'")
    page.js("document.querySelector('[aria-label=\"Delete first topic\"]').click()")
    page.wait(f"({titles}).length === 1")
    page.click(".toast .button")
    page.wait(f"({titles}).length === 2 && document.querySelector('.user-text')?.textContent === 'first topic'")


def test_export_and_import_bring_everything_back(page, mock):
    mock.answers.append([*text("exported"), *DONE])
    say(page, "to the file")
    page.js("""{ const make = URL.createObjectURL;
                 URL.createObjectURL = (blob) => { window.exported = blob; return make(blob); }; }""")
    page.click("#open-settings")
    page.js("[...document.querySelectorAll('dialog button')].find(b => b.textContent === 'Export all').click()")
    page.wait("window.exported")
    file = page.js("window.exported.text()")
    assert json.loads(file)["format"] == "sparkinfer-conversations"
    press = "[...document.querySelectorAll('dialog button')].find(b => b.textContent.startsWith('Delete all') && b.closest('{}')).click()"
    page.js(press.format(".row"))
    page.js(press.format(".confirm"))
    page.wait("document.querySelectorAll('.entry').length === 0")

    def import_file(content):
        page.js(f"""{{ const data = new DataTransfer(); data.items.add(new File([{json.dumps(content)}], 'chats.json'));
                       const input = document.querySelector('#import-file'); input.files = data.files;
                       input.dispatchEvent(new Event('change')); }}""")

    import_file('{"nodes": 7}')
    page.wait("document.querySelector('.toast')?.innerText.includes('was not imported')")
    import_file(file)
    page.wait("document.querySelectorAll('.entry').length === 1")
    page.key("Escape")
    page.js("document.querySelector('.entry a').click()")
    page.wait("document.querySelector('.answer')?.innerText.trim() === 'exported'")


def test_settings_are_checked_kept_and_sent(page, mock):
    page.click("#open-settings")
    page.wait("document.querySelector('dialog').open")

    def fill(name, value):
        page.js(f"document.querySelector('#set-{name}').select(); document.querySelector('#set-{name}').focus()")
        page.type(value)
        return page.js(f"document.querySelector('#error-{name}').textContent")

    assert fill("temperature", "hot") == "“hot” is not a number."
    assert page.js("document.querySelector('#set-temperature').getAttribute('aria-invalid')") == "true"
    assert fill("temperature", "0.25") == ""
    assert fill("top_p", "1.5") == "A number from 0 to 1 is needed."
    assert fill("max_tokens", "9000") == "The model's context has 8192 tokens."
    assert fill("max_tokens", "64") == ""
    assert fill("system", "Answer in verse.") == ""
    assert fill("tools", '[{"name": "f"}]') == ""
    page.key("Escape")
    page.wait("!document.querySelector('dialog').open")
    page.click("#thinking")
    page.reload()
    page.wait("document.querySelector('#model-name').textContent === 'mock-7b'")
    say(page, "go")
    sent = mock.requests[0]
    assert sent["messages"][0] == {"role": "system", "content": "Answer in verse."}
    assert (sent["temperature"], sent["max_tokens"]) == (0.25, 64) and "top_p" not in sent
    assert sent["chat_template_kwargs"] == {"enable_thinking": True}
    assert sent["tools"] == [{"type": "function", "function": {"name": "f"}}]


def test_errors_are_said_in_words_with_a_way_on(page, mock):
    mock.answers += [[Error(400, "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens.", "context_length_exceeded")],
                     [*text("half"), Error(500, "The device failed in linear_add.")], [*text("ha"), CUT], [*text("whole"), *DONE]]
    say(page, "one")
    assert last(page, ".notice-text").startswith("The conversation is longer than the model's context. This model's maximum context length is 8192 tokens.")
    page.click(".notice .button")
    page.wait(IDLE + " && document.querySelector('.notice')?.innerText.includes('linear_add')")
    assert answers(page) == ["half"]
    page.click(".notice .button")
    page.wait(IDLE + " && document.querySelector('.notice')?.innerText.includes('The connection ended before the answer was complete.')")
    page.click(".notice .button")
    page.wait(IDLE + " && document.querySelector('.answer').innerText.trim() === 'whole'")
    assert page.js("document.querySelectorAll('.notice').length") == 0
    assert last(page, ".branch").split() == ["3/3"], "what came before it failed is kept as a version"
    page.click(".assistant [aria-label='Previous version']")
    assert answers(page) == ["ha"]


def test_a_busy_server_is_asked_again(page, mock):
    mock.answers += [[Error(503, "The server is loading its model.", "model_loading", retry_after=1)], [*text("at last"), *DONE]]
    say(page, "wait for it", wait=False)
    page.wait("document.querySelector('.notice.wait')?.innerText.includes('The server is loading its model.')")
    page.wait(IDLE + " && document.querySelector('.answer').innerText.trim() === 'at last'")


def test_the_page_outlives_a_restart_of_the_server(page, mock):
    say(page, "before")
    mock.stop()
    say(page, "during", wait=False)
    page.wait("document.querySelector('.notice.wait')?.innerText.includes('The server cannot be reached.')")
    mock.answers.append([*text("after the restart"), *DONE])
    mock.start()
    page.wait(IDLE + " && [...document.querySelectorAll('.answer')].at(-1).innerText.trim() === 'after the restart'", 30)
    page.wait("document.querySelector('#server-state').hidden")
    assert [m["content"] for m in mock.requests[-1]["messages"]][-1] == "during"


def test_a_key_is_asked_for_and_kept_in_the_tab_alone(browser, mock):
    mock.key = "s3cret"
    page = browser.page(mock.url)
    page.wait("document.querySelector('#server-state').innerText === 'This server asks for an API key.'")
    page.click("#server-state")
    page.wait("document.activeElement.id === 'set-key'")
    page.type("wrong")
    page.key("Tab")
    page.wait("document.querySelector('#server-state').textContent === 'The server did not accept the API key.'")
    page.js("document.querySelector('#set-key').select(); document.querySelector('#set-key').focus()")
    page.type("s3cret")
    page.key("Tab")
    page.wait("document.querySelector('#model-name').textContent === 'mock-7b' && document.querySelector('#server-state').hidden")
    page.key("Escape")
    say(page, "hello")
    assert answers(page) == ["An answer without a script."]
    assert "s3cret" not in page.js("JSON.stringify({...localStorage})")
    assert page.js("sessionStorage.getItem('sparkinfer.key')") == "s3cret"
    page.close()


def test_an_answer_goes_on_while_another_conversation_is_shown(page, mock):
    hold = Hold()
    mock.answers += [[*text("begun, "), hold, *text("and ended."), *DONE], [*text("other"), *DONE]]
    say(page, "long one", wait=False)
    page.wait("document.querySelector('.answer')?.innerText.includes('begun')")
    page.click("#new-chat")
    say(page, "short one")
    assert answers(page) == ["other"]
    page.wait("document.querySelector('.entry .running')")
    hold.go.set()
    page.wait("!document.querySelector('.entry .running')")
    page.js("[...document.querySelectorAll('.entry a')].find(a => a.innerText.includes('long one')).click()")
    page.wait("document.querySelector('.answer')?.innerText.trim() === 'begun, and ended.'")


def test_the_view_follows_only_while_its_end_is_in_sight(page, mock):
    holds = [Hold(), Hold()]
    lines = [f"Line {i}.\n\n" for i in range(60)]
    mock.answers.append([*text(*lines[:30]), holds[0], *text(*lines[30:45]), holds[1], *text(*lines[45:]), *DONE])
    say(page, "long", wait=False)
    left = "document.querySelector('#scroller').scrollHeight - document.querySelector('#scroller').clientHeight - document.querySelector('#scroller').scrollTop"
    page.wait(f"document.querySelectorAll('.answer p').length === 30 && {left} < 3")
    holds[0].go.set()
    page.wait(f"document.querySelectorAll('.answer p').length === 45 && {left} < 3")
    page.js("document.querySelector('#scroller').scrollTop = 100")
    page.wait("!document.querySelector('#jump').hidden")
    holds[1].go.set()
    page.wait(IDLE)
    assert page.js("document.querySelector('#scroller').scrollTop") == 100
    page.click("#jump")
    page.wait(f"{left} < 3")


def test_everything_works_by_keyboard(page, mock):
    mock.answers += [[*text("by keys"), *DONE], [*text("edited by keys"), *DONE]]
    page.js("document.activeElement.blur()")
    page.key("/")
    assert page.js("document.activeElement.id === 'input' && document.activeElement.value === ''")
    page.type("line one")
    page.key("Enter", SHIFT)
    page.type("line two")
    page.key("Enter")
    page.wait(IDLE + " && document.querySelector('.answer')?.innerText.trim() === 'by keys'")
    assert users(page) == ["line one\nline two"] and page.js("document.activeElement.id") == "input"
    page.key("ArrowUp")
    page.wait("document.activeElement.matches('.edit-area')")
    page.js("document.activeElement.select()")
    page.type("edited")
    page.key("Enter")
    page.wait(IDLE + " && document.querySelector('.answer')?.innerText.trim() === 'edited by keys'")
    page.key("o", CTRL | SHIFT)
    page.wait("document.querySelector('.welcome') && document.activeElement.id === 'input'")
    page.key("k", CTRL)
    assert page.js("document.activeElement.id") == "search"
    # Tab reaches every control that is shown, in the order of the page.
    page.js("document.querySelector('.skip-link').focus()")
    seen = []
    for _ in range(25):
        seen.append(page.js("document.activeElement.id || document.activeElement.className || document.activeElement.tagName"))
        page.key("Tab")
    wanted = ["skip-link", "brand", "new-chat", "search", "open-settings", "theme", "idea", "input", "thinking"]
    positions = [seen.index(name) for name in wanted]
    assert positions == sorted(positions), seen


def test_text_files_become_part_of_the_message_and_a_draft_stays(page, mock):
    drop = """{ const data = new DataTransfer(); data.items.add(new File([%s], %s));
                document.dispatchEvent(new DragEvent('drop', {dataTransfer: data, bubbles: true, cancelable: true})); }"""
    page.click("#input")
    page.type("Look:")
    page.js(drop % (json.dumps("x = '```'\r\ny = 2\n"), "'a.py'"))
    page.wait("document.querySelector('#input').value.includes('y = 2')")
    page.js(drop % ("new Uint8Array([255, 0, 1])", "'image.png'"))
    page.wait("document.querySelector('.toast')?.innerText.includes('“image.png” is not text.')")
    page.reload()
    page.wait("document.querySelector('#input').value.startsWith('Look:')")
    page.click("#send")
    page.wait(IDLE + " && document.querySelector('.answer')")
    assert mock.requests[0]["messages"][0]["content"] == "Look:\n\na.py\n````py\nx = '```'\ny = 2\n````"


def test_a_deleted_conversation_is_not_brought_back_by_its_answer(page, mock):
    hold = Hold()
    mock.answers.append([*text("begun"), hold, *text("ended"), *DONE])
    say(page, "to be deleted", wait=False)
    page.wait("document.querySelector('.answer')?.innerText.includes('begun')")
    page.js("document.querySelector('[aria-label=\"Delete to be deleted\"]').click()")
    assert mock.gone.wait(10), "its request goes on"
    hold.go.set()
    page.wait("document.querySelector('.welcome') && document.querySelectorAll('.entry').length === 0")
    page.reload()
    page.wait("document.querySelector('.empty')")
    assert page.js("document.querySelectorAll('.entry').length") == 0


def test_two_tabs_share_the_list(browser, page, mock):
    other = browser.tab(mock.url, page.context)
    say(page, "seen by both")
    other.wait("document.querySelector('.entry-title')?.textContent === 'seen by both'")
    other.js("document.querySelector('.entry a').click()")
    other.wait("document.querySelector('.user-text')?.textContent === 'seen by both'")
    say(page, "more of it")
    other.wait("document.querySelectorAll('.user-text').length === 2")
    other.close()
