"""Which tokens of a conversation are answers, by templates that say it and by templates that do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from hf_integration.byte_tokenizer import build_byte_tokenizer
from hf_integration.data.chat import ChatFormat, set_chat_template
from hf_integration.data.records import Conversation
from hf_integration.errors import TrainingInputError
from tests.hf_integration.data.conftest import CHATML, MARKED, chat_tokenizer

# Writes the reasoning of the last answer only, as Qwen3's template does.
FORGETFUL = CHATML.replace(
    "{{ message['content'] }}",
    "{% if loop.last and message['role'] == 'assistant' %}<think></think>{% endif %}{{ message['content'] }}",
)
# Knows no generation prompt, but has a header.
HEADED = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}<|im_end|>{% endfor %}"
# Knows no generation prompt and needs none: the answer follows the question (Llama 2, Mistral).
INSTRUCT = (
    "{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'] }} [/INST]"
    "{% else %}{{ m['content'] }}<|im_end|>{% endif %}{% endfor %}"
)
STRICT = "{% if messages[0]['role'] != 'user' %}{{ raise_exception('user first') }}{% endif %}" + CHATML


def talk(*contents: str, first: str = "user") -> Conversation:
    """Return a conversation of ``contents`` in which two roles take turns."""
    roles = ("user", "assistant") if first == "user" else ("assistant", "user")
    return Conversation([{"role": roles[i % 2], "content": text} for i, text in enumerate(contents)])


def answers(tokenizer: PreTrainedTokenizerBase, record: Conversation) -> list[str]:
    """Return the runs of tokens that belong to answers, as text."""
    ids, belongs = ChatFormat(tokenizer).encode(record)
    assert len(ids) == len(belongs)
    runs: list[list[int]] = [[]]
    for token, flag in zip(ids, belongs, strict=True):
        if flag:
            runs[-1].append(token)
        elif runs[-1]:
            runs.append([])
    return [tokenizer.decode(run) for run in runs if run]


@pytest.mark.parametrize("template", [CHATML, MARKED, INSTRUCT])
def test_every_answer_is_learnt_with_the_token_that_ends_it(template: str) -> None:
    record = talk("Hello?", "Hi.", "Sum of 2 and 2?", "4")
    assert answers(chat_tokenizer(template), record) == ["Hi.<|im_end|>", "4<|im_end|>"]


@given(contents=st.lists(st.text(st.characters(exclude_characters="<|"), max_size=9), min_size=1, max_size=6))
def test_found_out_and_said_by_the_template_are_the_same(contents: list[str]) -> None:
    record = talk(*contents)
    found = ChatFormat(chat_tokenizer(CHATML)).encode(record)
    assert found == ChatFormat(chat_tokenizer(MARKED)).encode(record)
    # The tokens are those of the text that anyone else gets from the template.
    assert found[0] == chat_tokenizer(CHATML).apply_chat_template(record.messages, return_dict=False)


def test_an_end_that_the_template_leaves_outside_is_learnt_too() -> None:
    template = MARKED.replace("<|im_end|>{% endgeneration %}", "{% endgeneration %}<|im_end|>")
    assert answers(chat_tokenizer(template), talk("a", "b", "c", "d")) == ["b<|im_end|>", "d<|im_end|>"]


def test_conversation_without_an_answer_has_no_answer_token() -> None:
    assert answers(chat_tokenizer(), talk("Anyone?")) == []


def test_tools_reach_the_template() -> None:
    tokenizer = chat_tokenizer("{{ tools | tojson }}" + CHATML)
    record = Conversation(talk("a", "b").messages, tools=[{"type": "function"}])
    ids, _ = ChatFormat(tokenizer).encode(record)
    assert tokenizer.decode(ids).startswith('[{"type": "function"}]')


@pytest.mark.parametrize(
    ("template", "record", "message"),
    [
        (FORGETFUL, talk("a", "b", "c", "d"), "with later messages the chat template writes .* message 2"),
        (HEADED, talk("a", "b"), "takes no add_generation_prompt and writes more than message 2"),
        (CHATML, talk("a", "b", first="assistant"), "begins with the assistant.*{% generation %}"),
        (STRICT, talk("a", "b", first="assistant"), "is refused by the chat template: user first"),
        (CHATML + "{{ x.y.z }}", talk("a", "b"), "is refused by the chat template: 'x' is undefined"),
    ],
)
def test_answers_that_cannot_be_told_apart_are_refused(
    template: str, record: Conversation, message: str
) -> None:
    with pytest.raises(TrainingInputError, match=message):
        ChatFormat(chat_tokenizer(template)).encode(record)


def test_forgetful_template_serves_where_nothing_is_forgotten() -> None:
    assert answers(chat_tokenizer(FORGETFUL), talk("a", "b")) == ["<think></think>b<|im_end|>"]


def test_tokenizers_that_cannot_serve_are_refused() -> None:
    with pytest.raises(TrainingInputError, match='"messages" need a chat template .* has none'):
        ChatFormat(chat_tokenizer(None))
    several = chat_tokenizer()
    several.chat_template = {"default": CHATML, "tools": CHATML}
    with pytest.raises(TrainingInputError, match="the tokenizer has several, default, tools; name one"):
        ChatFormat(several)
    spelling = build_byte_tokenizer()
    spelling.chat_template = CHATML
    with pytest.raises(TrainingInputError, match="takes special tokens apart"):
        ChatFormat(spelling)


def test_template_of_a_file_goes_before_the_tokenizers_own_and_is_saved(tmp_path: Path) -> None:
    file = tmp_path / "own.jinja"
    file.write_text(MARKED, encoding="utf-8")
    tokenizer = chat_tokenizer(CHATML)
    set_chat_template(tokenizer, file)
    assert ChatFormat(tokenizer).marks_answers
    tokenizer.save_pretrained(tmp_path)
    assert (tmp_path / "chat_template.jinja").read_text(encoding="utf-8") == MARKED


def test_file_that_is_no_template_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "broken.jinja"
    for content in (b"{% for m in messages %}", b"\xff\xfe"):
        file.write_bytes(content)
        with pytest.raises(TrainingInputError, match="--chat_template .* is no Jinja template: "):
            set_chat_template(chat_tokenizer(), file)
