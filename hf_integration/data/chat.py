"""Conversations as the tokens of a chat template, and which of them the assistant wrote."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jinja2
from transformers import PreTrainedTokenizerBase

from hf_integration.data.answers import Span, encode_with_answers, require_offsets
from hf_integration.data.records import Conversation
from hf_integration.errors import TrainingInputError

GENERATION = re.compile(r"{%-?\s*generation\s*-?%}")
MEND = "mark the assistant's text with {% generation %} … {% endgeneration %} in a --chat_template FILE"


def set_chat_template(tokenizer: PreTrainedTokenizerBase, file: Path) -> None:
    """Give ``tokenizer`` the template in ``file``, in place of its own; it is saved with the model.

    Raises:
        TrainingInputError: the file is no UTF-8 text, or no Jinja template.
    """
    try:
        template = file.read_text(encoding="utf-8")
        # Only parsed here; transformers renders it, in a sandbox. Its own tag is what Jinja does not know.
        jinja2.Environment(extensions=["jinja2.ext.loopcontrols"]).parse(
            re.sub(r"{%-?\s*(end)?generation\s*-?%}", "", template)
        )
    except (UnicodeDecodeError, jinja2.TemplateSyntaxError) as error:
        raise TrainingInputError(f"--chat_template {file} is no Jinja template: {error}") from error
    tokenizer.chat_template = template


class ChatFormat:
    """Encodes conversations with the chat template of a tokenizer and marks what the assistant wrote.

    Where the template says it, with ``{% generation %}``, transformers' own mask is taken. Elsewhere an
    answer is what rendering up to and with its message adds to rendering up to it with a generation prompt.
    Both must be true beginnings of the whole, else the difference means nothing and the record is refused.

    As everywhere in transformers, a message that spells a special token becomes that token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Check that ``tokenizer`` is fit for it.

        Raises:
            TrainingInputError: it has no template or several, tells no characters of its tokens, or takes
                special tokens apart.
        """
        require_offsets(tokenizer)
        template = tokenizer.chat_template
        if not isinstance(template, str):
            found = f"several, {', '.join(template)}" if template else "none"
            raise TrainingInputError(
                f'"messages" need a chat template and the tokenizer has {found}; name one with '
                '--chat_template FILE, or write "prompt" and "completion"'
            )
        if tokenizer.split_special_tokens:
            raise TrainingInputError(
                "the tokenizer takes special tokens apart (split_special_tokens), so no token would end an "
                "answer; set it to false in tokenizer_config.json"
            )
        self.marks_answers = GENERATION.search(template) is not None
        self._tokenizer = tokenizer
        added = [token.content for token in tokenizer.added_tokens_decoder.values()]
        self._ends = tuple({*tokenizer.all_special_tokens, *added})

    def encode(self, record: Conversation) -> tuple[list[int], list[bool]]:
        """Return the token ids of ``record`` and, for each, whether it belongs to an answer.

        An answer holds its end-of-turn token, since the model is to learn where to stop.

        Raises:
            TrainingInputError: the template refuses the messages, or the answers cannot be told apart; the
                message is to follow the place of the record.
        """
        if self.marks_answers:
            ids, answers = self._masked_by_the_template(record)
        else:
            text = self._render(record, len(record.messages))
            spans = [
                self._span(record, text, index)
                for index, message in enumerate(record.messages)
                if message["role"] == "assistant"
            ]
            ids, answers = encode_with_answers(self._tokenizer, text, spans, add_special_tokens=False)
        return ids, self._with_ends(ids, answers)

    def _masked_by_the_template(self, record: Conversation) -> tuple[list[int], list[bool]]:
        """Return token ids and the mask that transformers makes of ``{% generation %}``."""
        encoded = self._apply(
            record.messages, record.tools, return_dict=True, return_assistant_tokens_mask=True
        )
        return encoded["input_ids"], [bool(flag) for flag in encoded["assistant_masks"]]

    def _render(self, record: Conversation, count: int, prompt: bool = False) -> str:
        """Return the first ``count`` messages as text, with a prompt for the next answer where asked for."""
        return self._apply(
            record.messages[:count], record.tools, tokenize=False, add_generation_prompt=prompt
        )

    def _apply(self, messages: list[dict[str, Any]], tools: list[Any] | None, **options: Any) -> Any:
        """Call the template; its refusals become ours."""
        try:
            return self._tokenizer.apply_chat_template(messages, tools=tools, **options)
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise TrainingInputError(f"is refused by the chat template: {error}") from error

    def _span(self, record: Conversation, text: str, index: int) -> Span:
        """Return where in ``text``, the whole conversation, the answer in message ``index`` stands."""
        number = index + 1
        if index == 0:
            raise TrainingInputError(
                f"begins with the assistant, where the chat template shows no beginning of an answer; {MEND}"
            )
        before, after = self._render(record, index, prompt=True), self._render(record, number)
        if not (after.startswith(before) and text.startswith(after)):
            raise TrainingInputError(
                f"cannot be divided into questions and answers: with later messages the chat template writes "
                f"what stands before message {number}, or the message, in another way; {MEND}"
            )
        answer = after[len(before) :]
        content = record.messages[index].get("content")
        takes_prompt = before != self._render(record, index)
        if not takes_prompt and isinstance(content, str) and not answer.strip().startswith(content.strip()):
            raise TrainingInputError(
                f"cannot be divided into questions and answers: the chat template takes no "
                f"add_generation_prompt and writes more than message {number} before it; {MEND}"
            )
        # What a template writes behind the end of a turn, a line break, is never generated.
        bare = answer.rstrip()
        return len(before), len(before) + len(bare if bare.endswith(self._ends) else answer)

    def _with_ends(self, ids: list[int], answers: list[bool]) -> list[bool]:
        """Return ``answers`` with an end-of-text token added to the answer that it follows.

        Templates differ in whether ``{% generation %}`` holds it.
        """
        end = self._tokenizer.eos_token_id
        followed = zip(ids[1:], answers[1:], answers, strict=False)
        return answers[:1] + [flag or (before and token == end) for token, flag, before in followed]
