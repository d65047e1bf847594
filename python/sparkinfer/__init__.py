"""sparkinfer: language models from their files, in this process.

    from sparkinfer import Model

    model = Model("model.gguf")
    print(model.generate("Why is the sky blue?", max_tokens=100))
    for text in model.stream("Tell me a story.", temperature=0.7):
        print(text, end="", flush=True)
    rows = model.logits(model.tokenize("Hello world"))    # numpy, [tokens, vocabulary]

A prompt is a question (a `str`: one message of the user in the model's chat template; with raw=True a text to go on with), a
conversation (a list of {"role": …, "content": …}), or token ids. Calls may come from any thread; those on one model that
compute take turns.
"""

from ._library import Error, version
from ._model import Model, Stream

__all__ = ["Error", "Model", "Stream"]
__version__ = version()
