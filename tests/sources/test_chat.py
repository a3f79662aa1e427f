"""Conversations as text: by the template or not at all, with all keys of the messages, under the roles it expects."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from penstock import (
    ChatTemplate,
    ChatTemplateTransform,
    ConvertInputOutputToChatML,
    ConvertToChatML,
    MaybeApplyChatTemplate,
    MemoryShardedSource,
    TransformError,
)
from penstock.errors import ConfigError, DataError, MissingColumnError

CHATML = ChatTemplate(
    "{% for message in messages %}"
    "{% if message.role not in ('system', 'user', 'assistant', 'tool') %}"
    "{{ raise_exception('bad role ' + message.role) }}"
    "{% endif %}<{{ message.role }}>{{ message.content }}{% if message.name %} ({{ message.name }}){% endif %}{{ end }}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    "{% if tools %}[{{ tools|length }} tools]{% endif %}",
    end="|",
)
HELLO = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
SHARED = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello", "name": "Eve"}]


def test_messages_become_text() -> None:
    source = MemoryShardedSource([{"messages": HELLO, "id": 1}])
    assert list(source.apply_chat_template(CHATML)) == [{"id": 1, "text": "<user>hi|<assistant>hello|"}]
    kept = ChatTemplateTransform(CHATML, output_field="t", drop_messages=False, tools=[{}], add_generation_prompt=True)
    assert kept({"messages": HELLO}) == {"messages": HELLO, "t": "<user>hi|<assistant>hello|<assistant>[1 tools]"}


def test_other_names_and_other_forms_of_messages() -> None:
    transform = ChatTemplateTransform(CHATML)
    assert transform({"conversations": SHARED}) == {"text": "<user>hi|<assistant>hello (Eve)|"}
    assert transform({"conversation": HELLO}) == {"text": "<user>hi|<assistant>hello|"}
    with pytest.raises(DataError, match="chat template failed"):
        ChatTemplateTransform(CHATML, convert_from_value_format=False)({"messages": SHARED})


def test_a_template_that_fails_is_an_error_that_names_the_row() -> None:
    samples = [{"messages": HELLO}, {"messages": [{"role": "robot", "content": "?"}]}]
    source = MemoryShardedSource(samples, name="chat").apply_chat_template(CHATML)
    with pytest.raises(TransformError, match=r"row 1 of chat:0.*roles robot: .*bad role robot"):
        list(source)


def test_a_sample_without_messages_is_an_error() -> None:
    with pytest.raises(
        MissingColumnError,
        match="no messages: messages, conversations, conversation hold none.*or use MaybeApplyChatTemplate",
    ):
        ChatTemplateTransform(CHATML)({"instruction": "do", "output": "done"})
    assert MaybeApplyChatTemplate(CHATML)({"instruction": "do"}) == {"instruction": "do"}


def test_preference_data() -> None:
    sample = {"prompt": HELLO[:1], "chosen": HELLO[1:], "rejected": [{"role": "assistant", "content": "no"}], "n": 1}
    made = MaybeApplyChatTemplate(CHATML)(sample)
    assert made == {"prompt": "<user>hi|<assistant>", "chosen": "hello|", "rejected": "no|", "n": 1}
    assert MaybeApplyChatTemplate(CHATML)({"chosen": HELLO})["chosen"] == "<user>hi|<assistant>hello|"
    assert MaybeApplyChatTemplate(CHATML)({"prompt": "plain", "chosen": "text"}) == {
        "prompt": "plain",
        "chosen": "text",
    }
    turning = ChatTemplate("{% if messages|length > 1 %}!{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}")
    with pytest.raises(DataError, match="differently when 'chosen' follows"):
        MaybeApplyChatTemplate(turning)(sample)


def test_from_and_value_become_role_and_content_and_other_keys_stay() -> None:
    messages = [
        {"from": "system", "value": "s"},
        {"from": "human", "value": "q", "images": ["a.png"]},
        {"from": "model", "value": "a", "tool_calls": [{"id": 1}]},
        {"from": "function", "value": "f", "name": "search"},
        {"role": "user", "content": "again", "weight": 0},
    ]
    assert ConvertToChatML()({"conversations": messages, "id": 7}) == {
        "id": 7,
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "q", "images": ["a.png"]},
            {"role": "assistant", "content": "a", "tool_calls": [{"id": 1}]},
            {"role": "tool", "content": "f", "name": "search"},
            {"role": "user", "content": "again", "weight": 0},
        ],
    }
    mapped = ConvertToChatML("c", "m", role_mapping={"human": "person"}, use_default_mapping=False)
    assert mapped({"c": [*SHARED[:1], {"from": "gpt", "value": "x"}]})["m"] == [
        {"role": "person", "content": "hi"},
        {"role": "gpt", "content": "x"},
    ]
    with pytest.raises(DataError, match="neither role and content nor from and value: it has text"):
        ConvertToChatML()({"conversations": [{"text": "?"}]})
    with pytest.raises(MissingColumnError, match="no field 'conversations'"):
        ConvertToChatML()({})


def test_turns_become_messages() -> None:
    turns = [{"system": "be nice", "input": "a", "output": "b"}, {"input": "c", "output": "d"}]
    made = ConvertInputOutputToChatML(user_role="u", assistant_role="a")({"conversation": turns})
    assert [tuple(message.values()) for message in made["messages"]] == [
        ("system", "be nice"),
        ("u", "a"),
        ("a", "b"),
        ("u", "c"),
        ("a", "d"),
    ]
    with pytest.raises(MissingColumnError, match="a turn has no 'output': it has input"):
        ConvertInputOutputToChatML()({"conversation": [{"input": "a"}]})


def test_a_template_cannot_reach_out_of_its_sandbox() -> None:
    escape = ChatTemplate("{{ ''.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(DataError, match="SecurityError"):
        ChatTemplateTransform(escape)({"messages": HELLO})


def test_what_is_no_tokenizer_is_refused() -> None:
    with pytest.raises(ConfigError, match="str has no apply_chat_template"):
        ChatTemplateTransform("gpt2")  # type: ignore[arg-type]


def test_a_tokenizer_that_gives_no_text_is_refused() -> None:
    class Tokens:
        def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
            return [1, 2]

    with pytest.raises(DataError, match="returned a list instead of text"):
        ChatTemplateTransform(Tokens())({"messages": HELLO})


def test_what_a_template_uses_is_part_of_the_fingerprint() -> None:
    marks = [ChatTemplateTransform(ChatTemplate("{{ eos }}", eos=mark)).fingerprint() for mark in ("a", "b", "a")]
    assert marks[0] == marks[2] != marks[1]
    assert marks[0] != ChatTemplateTransform(ChatTemplate("{{ eos }}")).fingerprint()


def test_it_is_sent_to_workers_and_has_a_fingerprint() -> None:
    transform = ChatTemplateTransform(CHATML)
    transform({"messages": HELLO})
    assert pickle.loads(pickle.dumps(transform))({"messages": HELLO}) == {"text": "<user>hi|<assistant>hello|"}
    assert transform.fingerprint() == ChatTemplateTransform(CHATML).fingerprint()
    assert transform.fingerprint() != ChatTemplateTransform(CHATML, add_generation_prompt=True).fingerprint()
    assert transform.fingerprint() != ChatTemplateTransform(ChatTemplate("x")).fingerprint()
