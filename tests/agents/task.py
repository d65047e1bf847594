"""The task that every agent is given, and what the scripted model says in each turn of it.

A file with a bug is read, edited and run; the report must name what the corrected program prints. Each rule asks for
what the turn before has brought, so that a tool that did not run, or whose result did not reach the model, ends the
script.
"""

WRONG = "def total(prices):\n    return sum(prices) - 1\n\n\nprint(\"total:\", total([3, 4, 5]))\n"
RIGHT = WRONG.replace("sum(prices) - 1", "sum(prices)")
FILE = "total.py"
PROMPT = f"{FILE} prints a wrong total. Read it, correct it, run it, and report what it prints."
REPORT = "I corrected total.py; it prints total: 12 now."
PATCH = f"""apply_patch <<'END'
*** Begin Patch
*** Update File: {FILE}
@@
 def total(prices):
-    return sum(prices) - 1
+    return sum(prices)
*** End Patch
END"""


def xml_call(name, arguments):
    """A call in the tool format of Qwen3.5."""
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def rules(calls):
    """The script of one agent: three calls [(name, arguments), …] for read, edit and run, then the report.

    Requests without tools are for side jobs such as a title."""
    read, edit, run = (xml_call(*call) for call in calls)
    return {"rules": [
        {"lacks": ["<tools>"], "say": "A wrong total"},
        {"turn": 1, "contains": [PROMPT], "say": "I read the file first.\n\n" + read},
        {"turn": 2, "tail": ["sum(prices) - 1"], "think": "One too few.", "say": edit},
        {"turn": 3, "contains": [PROMPT, "sum(prices)"], "say": "Now I run it.\n\n" + run},
        {"turn": 4, "tail": ["total: 12"], "think": "It is right.", "say": REPORT},
    ]}


def block(search, replace):
    return f"{FILE}\n```python\n<<<<<<< SEARCH\n{search}\n=======\n{replace}\n>>>>>>> REPLACE\n```\n"


def aider_rules():
    """aider has no tools: edit blocks in text, and what the test command printed as the next message. Three wrong tries
    before the right one make four turns; the newest output tells which it is."""
    line = "    return sum(prices)"
    tries = [line + end for end in (" - 1", " + 1", " + 2", " + 3", "")]
    rules = [{"contains": ["prints a wrong total"] + ([f"total: {12 + i}"] if i else []),
              "say": block(tries[i], tries[i + 1])} for i in range(4)]
    rules[3]["say"] = REPORT + "\n\n" + rules[3]["say"]
    return {"rules": rules[::-1]}
